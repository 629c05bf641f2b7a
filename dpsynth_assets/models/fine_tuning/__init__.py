"""Fine-tuning of any transformers model on private text by DP-Adam.

Read in this order: `adapters` (what is trained beside frozen weights), `sources` (settings, losses
of single examples, gradients of records here or with workers, and on public text: models that
cannot be trained) and `training` (the function to call, and the state of an unfinished run).
"""
