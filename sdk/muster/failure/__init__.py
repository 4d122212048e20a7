"""Failures of a run: the search for the cause among them, and the error that reports it."""
