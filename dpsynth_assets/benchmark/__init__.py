"""Methods beside one another: cells of datasets, methods, budgets and seeds, and their leaderboard.

The records of a benchmark are public corpora in the place of private ones: its scores and costs are
shown as they are.
"""
