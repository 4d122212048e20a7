"""The workers of a pool on another platform, as a platform for the runs on that pool."""
