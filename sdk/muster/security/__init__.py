"""Keys, certificates, ssh, and trust between hosts."""
