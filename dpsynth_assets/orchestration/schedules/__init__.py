"""Releases without a click: schedules, and first runs of new cohorts.

Both start switched off, both ask the ledger before they ask for a run, and both say why they do
not. What costs nothing follows by itself (`assets/automation.py`).
"""
