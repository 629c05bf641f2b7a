"""Everything a proof depends on: mechanisms, accounting, ledger. Imports nothing of ours."""
