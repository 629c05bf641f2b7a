"""Packages to share: a corpus or a generator, with its label and a proof of its charges.

Read in this order: `package` (writing one, and its line in the ledger), `proof` (the ledger entries
behind it), `verification` (without the ledger).
"""
