"""What a dataset file adds to the asset graph, and what a file that cannot be used shows there."""
