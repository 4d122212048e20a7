"""What one process needs to run clusters beside a notebook: a background thread, interrupts, forks."""
