"""Packages to share: a corpus or a generator, with its label and a proof of its charges.

Read in this order: `package` (writing one, its line in the ledger, and the entries behind it),
`verification` (without the ledger).
"""
