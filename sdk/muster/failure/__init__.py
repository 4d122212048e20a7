"""Failures of a run: the cause among all of them, and the error that tells of it."""
