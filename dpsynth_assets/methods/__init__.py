"""The papers, by family. Each family registers one or more generation methods."""
