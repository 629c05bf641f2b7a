"""Generation methods, by family of papers. Each family registers one or more methods."""
