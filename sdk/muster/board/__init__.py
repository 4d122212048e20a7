"""TensorBoard beside the session."""
