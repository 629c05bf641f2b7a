"""Releases, without Dagster: paid once, drawn by one run at a time, stored permanently."""
