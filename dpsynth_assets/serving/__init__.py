"""Released artifacts behind an endpoint: rows of a label, on demand, at no further ε.

Read in this order: `artifacts` (what may be opened, and its line in the ledger), `row_queue` (rows
of many requests written together), `requests` (what a client may ask), `app` (the routes), `server`
(bounds of the HTTP server).
"""
