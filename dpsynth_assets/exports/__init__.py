"""Packages for others: a corpus or a generator, with its label and proof of what it cost.

Read in this order: `package` (writing one, and its line in the ledger), `proof` (the ledger entries
behind it), `verification` (without the ledger).
"""
