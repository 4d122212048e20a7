"""Workers in containers of Docker or Podman, which share nothing with the session."""
