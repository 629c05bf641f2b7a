"""Private prediction: tokens drawn from aggregated logits of many private contexts.

Read in this order: `batching` (who shares a batch), `prompts`, `loop` (Algorithm 1), `plan` (what
it costs), `mean` and `median` (what is drawn), `references` (floor and ceiling).

Sources: Amin et al. 2024, "Private prediction for large-scale synthetic text generation" [amin2024]
and Amin et al. 2025, "Clustering improves differentially private inference" [amin2025], with the
corrections listed in the functions they concern.
"""
