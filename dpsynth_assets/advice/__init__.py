"""Which method, for whose data, at what price: chosen from public facts and the leaderboard.

Nothing here reads a record, or a score of private records.
"""
