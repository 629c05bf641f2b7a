"""What is deployed: resources, public bases, and one folder per private dataset."""
