"""The web UI: a server that accepts only requests of its own pages, and the daemon."""
