"""Finds the grammar that wrote the demo's files, for benchmarks that want other rows of it."""

import sys

from dpsynth_assets.paths import project_root

sys.path.append(str(project_root() / "data" / "demo"))

from mailboxes import private_rows, public_rows

__all__ = ["private_rows", "public_rows"]
