"""Checks made before a launch: the script, its interpreter, the MPI, and the plan."""
