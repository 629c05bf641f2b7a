"""Scores of a corpus against real text: pure functions of arrays and strings.

Every score here is computed without noise. Those that read private text are internal.
"""
