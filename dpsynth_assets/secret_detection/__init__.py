"""Finds secrets in private text: who detects, what is found, and how many are missed."""
