"""Public topics of text: embeddings, ten keywords each, and a bin for what belongs to none.

Fitted once on public documents and kept for every dataset that uses the same embedder.

**Source** Tan et al. 2025, section 3.2 (CTCL-Topic).
"""
