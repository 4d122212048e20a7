"""Workers of a pool on another platform: its runs find them as a platform of their own."""
