"""Private prediction: tokens drawn from aggregated logits of many private contexts.

Read in this order: `declared_batches` and `split_batches` (who shares a batch), `decoding` (prompts
and logits), `loop` (Algorithm 1), `corpus` and `passes` (a run), `method` (the stage, its plan and
its price), `mean` and `median` (what is drawn), `references` (floor and ceiling), `planted_keys`
(the attacks that concern these methods).

Sources: Amin et al. 2024, "Private prediction for large-scale synthetic text generation" [amin2024]
and Amin et al. 2025, "Clustering improves differentially private inference" [amin2025], with the
corrections listed in the functions they concern.
"""
