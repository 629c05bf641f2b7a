"""A decoder for Llama-shaped models whose logits are a function of a row's own context.

They are so bit for bit, regardless of the other rows of the pass, in any order and however prompts
were cut into passes. Every sum over many numbers is exact, and an exact sum has no order: weights
are int8 by output channel, activations 8 bits by token, and attention multiplies integers too,
small enough that 24 bits hold every partial sum. What is left are operations on one number at a
time, and a norm and a softmax over one row, computed by one thread.

On CUDA devices (`gpu_decoder`) tensor cores multiply the same integers, in sums of 32 bits.

Shape letters: T tokens of a pass, R rows (contexts), C cache columns, V vocabulary, L layers, d
width, H query heads, G key/value heads, D head width.
"""
