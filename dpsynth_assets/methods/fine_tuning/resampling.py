"""Which rows of a corpus to keep, so that its histogram becomes the released one.

Letters: M cells (label and topic), S rows of a corpus, N rows kept.
"""

import numpy as np

NEGLIGIBLE = 1e-12
"""A share of the whole below this is none."""


def quotas(shares: np.ndarray, available: np.ndarray, rows: int) -> np.ndarray:
    """Shares out N rows over cells in proportion, where no cell gives more rows than it has.

    What a cell lacks goes to the others in their own proportions: the largest λ x share, cut to
    what is there, that sums to N. Cells of share zero are used only where all others are empty.

    Args:
        shares: float (M,), non-negative, of the released histogram.
        available: int (M,), rows of the corpus in each cell.
        rows: N, at most the sum of `available`.

    Returns:
        int64 (M,), summing to N.

    Raises:
        ValueError: If N is negative or more than there is.
    """
    total = int(available.sum())
    if not 0 <= rows <= total:
        raise ValueError(f"Expected rows in [0, {total}], got {rows}. Write more rows first.")
    shares = np.where(shares > NEGLIGIBLE * shares.sum(), shares, 0.0)
    wanted = np.minimum(_water_level(shares, available, rows) * shares, available)
    kept = np.minimum(np.floor(wanted).astype(np.int64), available)
    reachable = min(rows, int(available[shares > 0].sum()))
    open_cells = np.flatnonzero((shares > 0) & (kept < available))
    by_remainder = np.lexsort((-shares[open_cells], (kept - wanted)[open_cells]))
    kept[open_cells[by_remainder[: reachable - int(kept.sum())]]] += 1
    for cell in np.flatnonzero(available > kept):  # Only where every wanted cell is used up.
        kept[cell] += min(int(available[cell] - kept[cell]), rows - int(kept.sum()))
    return kept


def _water_level(shares: np.ndarray, available: np.ndarray, rows: int) -> float:
    """Finds λ with Σ min(λ share, available) = N by filling cells in the order they run dry."""
    used = np.flatnonzero((shares > 0) & (available > 0))
    dry = available[used] / shares[used]
    order = used[np.argsort(dry, kind="stable")]
    open_shares = np.cumsum(shares[order][::-1])[::-1]  # Of a cell and those after it.
    left = float(rows)
    for cell, open_share in zip(order, open_shares, strict=True):
        level = left / open_share
        if level * shares[cell] <= available[cell]:
            return level
        left -= float(available[cell])
    return float(dry.max(initial=0.0))


def choose_rows(cells: np.ndarray, kept: np.ndarray, seed: int) -> np.ndarray:
    """Draws the rows to keep: of each cell its quota, uniformly and without replacement.

    Args:
        cells: int (S,), cell of each row in [0, M).
        kept: int (M,), rows to keep of each cell.
        seed: Public seed.

    Returns:
        int64 (N,) indices of rows, in their order in the corpus.
    """
    order = np.random.default_rng(seed).permutation(len(cells))
    ordered = cells[order]
    by_cell = np.argsort(ordered, kind="stable")
    sizes = np.bincount(cells, minlength=len(kept))
    ranks = np.arange(len(cells)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    rows = order[by_cell]
    return np.sort(rows[ranks < kept[cells[rows]]])
