"""Runs a release: charges and draws it once, stores it, and reuses it at no cost."""
