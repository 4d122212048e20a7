"""Means to run clusters beside a notebook in one process: a background thread, interrupts, forks."""
