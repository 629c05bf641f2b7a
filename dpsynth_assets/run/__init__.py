"""What makes a release: charged once, drawn once, stored, found again for nothing."""
