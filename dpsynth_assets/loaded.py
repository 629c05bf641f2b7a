"""When this process began to load the package: imported before anything else of it."""

import time

LOADED_AT = time.time_ns()
"""Nanoseconds since 1970. Code that was changed later may be other code than what runs."""
