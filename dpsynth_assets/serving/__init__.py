"""Serves released artifacts through an HTTP API: rows of a label, on demand, at no further ε.

Read in this order: `artifacts` (what may be opened, and its line in the ledger), `requests` (what a
client may ask), `row_queue` (rows of many requests written together), `app` (routes and server).
"""
