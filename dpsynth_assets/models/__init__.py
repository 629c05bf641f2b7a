"""Language models, text embedder and engines; heavy libraries are imported inside functions."""
