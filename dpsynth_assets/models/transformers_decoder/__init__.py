"""Decoding over any causal language model of transformers, on the processor or a CUDA device.

Many contexts run as the rows of one forward pass. Each row writes its own cache column, so a
document that ends makes its rows start again from the cached prompt while other rows continue: no
second prefill, no idle rows. Public text that prompts share is read once. On CUDA the decoding
pass is captured as a graph.

Shape letters: R rows, P prompt columns (a public pad length), T new tokens, V vocabulary,
L layers, G key/value heads, H query heads, D head width.
"""
