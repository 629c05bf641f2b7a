"""Dagster resources: the ledger, the stores, the models, and progress."""
