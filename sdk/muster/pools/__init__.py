"""The workers of runs: the endpoint to which their agents connect, their leases, and their submission."""
