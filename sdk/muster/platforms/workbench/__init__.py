"""Workers of Cloudera's workbench (CDSW, Cloudera Machine Learning): Muster inside one of its sessions."""
