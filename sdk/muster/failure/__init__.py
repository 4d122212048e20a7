"""What went wrong: the cause among all failures, and the error that tells of it."""
