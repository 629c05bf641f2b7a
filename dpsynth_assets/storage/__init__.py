"""Folders that appear whole or not at all, and public models that machines share."""
