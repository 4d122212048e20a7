"""One run: from what was asked, over its workers and their processes, to how it ended."""
