"""The owner-only store of private records: files, sealed objects, parts, fingerprints."""
