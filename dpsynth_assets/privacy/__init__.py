"""The privacy kernel: mechanisms, accounting, ledger. Imports no other part of the product."""
