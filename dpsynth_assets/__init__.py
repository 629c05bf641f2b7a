"""Differentially private synthetic text, orchestrated as Dagster assets."""
