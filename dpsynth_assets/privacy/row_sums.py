"""Sums of rows whose last bit depends on the row alone."""

import numpy as np


def row_sums(terms: np.ndarray) -> np.ndarray:
    """Adds up each row in an order that its length alone decides.

    Every step adds two columns, entry by entry. One addition of two numbers rounds in one way on
    every processor, at every place of an array and in whatever vector instruction, so a sum is a
    function of its row's numbers, bit for bit. A library's own sum or product need not be: it may
    start at an aligned address, or treat the last rows of a block in other instructions.

    Args:
        terms: float (n, d), d >= 0.

    Returns:
        (n,) sums, of the same type; zeros where d = 0.

    **Privacy** Row i of the result depends on row i only.

    **Source** Higham 2002, "Accuracy and Stability of Numerical Algorithms", section 4.1 (pairwise
    summation): the error is at most about log2(d) rounding units of the sum of absolute values.
    """
    if terms.shape[1] == 0:
        return np.zeros(len(terms), dtype=terms.dtype)
    while (width := terms.shape[1]) > 1:
        half = width // 2
        folded = terms[:, :half] + terms[:, half : 2 * half]
        if width % 2:
            folded[:, 0] += terms[:, -1]
        terms = folded
    return np.asarray(terms[:, 0])
