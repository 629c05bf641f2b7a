"""What makes a release: charged once, drawn once, stored, found again at no cost."""
