"""Workers in containers of Docker or Podman, which share no files with the session."""
