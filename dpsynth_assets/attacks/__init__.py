"""Attacks on a corpus: searches for copied spans, near copies, planted canaries."""
