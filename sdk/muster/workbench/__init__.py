"""The worker calls of Cloudera's workbench, for its scripts and for sessions without a cluster."""
