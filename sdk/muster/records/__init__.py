"""What is kept of runs: their folders, journals and results."""
