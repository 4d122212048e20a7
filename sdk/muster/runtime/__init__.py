"""Support for running clusters in a notebook's process: a background thread, interrupts, forks, logging."""
