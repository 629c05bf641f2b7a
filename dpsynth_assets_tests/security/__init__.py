"""What must never leave: leaks, hostile input, keys, links, and a read-only web server."""
