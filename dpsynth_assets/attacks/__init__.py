"""What an attacker looks for in a corpus: copied spans, near copies, planted canaries."""
