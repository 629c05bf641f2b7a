"""Files: replaced whole, kept by digest, locked; tables and pages; errors that show no text."""
