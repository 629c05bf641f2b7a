"""Records when this process began to load the package; it is imported before all other modules."""

import time

LOADED_AT = time.time_ns()
"""Nanoseconds since 1970. Code that was changed later may be other code than what runs."""
