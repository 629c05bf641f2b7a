"""Deployed definitions: resources, public bases, and one folder per private dataset."""
