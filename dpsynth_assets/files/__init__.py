"""File handling: atomic replacement, caching by digest, locks, tables, pages and safe errors."""
