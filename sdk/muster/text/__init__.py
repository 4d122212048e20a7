"""Text that comes from outside: from workers, scripts, files that anybody may have written."""
