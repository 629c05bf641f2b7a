"""CTCL's generator: writes a document for free-text aspects such as keywords and document type.

**Source**: Tan et al. 2025, section 3.1.
"""
