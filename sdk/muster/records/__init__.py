"""Records of runs: their folders, journals and results."""
