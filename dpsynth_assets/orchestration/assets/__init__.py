"""Assets: factories from a declaration to its assets. Bodies are thin."""
