"""The web UI: a server that answers its own pages alone, and the daemon beside it."""
