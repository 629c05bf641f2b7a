"""Compares methods on public corpora: cells (dataset, method, budget, seed) and a leaderboard.

The records of a benchmark are public corpora in the place of private ones: its scores and costs are
shown as they are.
"""
