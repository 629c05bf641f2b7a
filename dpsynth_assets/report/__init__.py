"""Pages and pictures: the internal evaluation report, and the cards that leave with data."""
