"""The workers of runs: the endpoint that their agents dial, and which workers are there."""
