"""Recommends methods for declared data, with their costs, from public facts and the leaderboard.

Nothing here reads a record, or a score of private records.
"""
