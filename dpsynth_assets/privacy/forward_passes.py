"""Assignment of rows to forward passes: never more than a public number, and one record moves few.

Kernels round a row's numbers by its place in a pass and by the number of rows there. So a record
that comes or goes may move, by rounding, the logits of the rows that share a pass with it before or
after. `logit_slack` bounds how far; here is the bound on how many, whatever the private data are
(`BatchTerms.rows_per_pass`).
"""

import hashlib
from collections.abc import Sequence

import numpy as np

_PERSON = b"dpsynth-passes"
_KEY_BYTES = 32


def row_key(*parts: str | int) -> bytes:
    """Computes 32 bytes that name a row: a hash of what identifies it, whatever others there are.

    Args:
        parts: Such as the id of the record whose context it is.
    """
    digest = hashlib.blake2b(person=_PERSON, digest_size=_KEY_BYTES)
    for part in parts:
        text = str(part).encode()
        digest.update(len(text).to_bytes(8, "big") + text)
    return digest.digest()


def pass_rows(keys: Sequence[bytes], most_rows: int) -> list[np.ndarray]:
    """Cuts rows into passes of at most `most_rows` = P rows by the leading bits of their keys.

    All rows are one pass if they are P or fewer. More are cut in two by the first bit of their
    keys, each part that is still larger by the next bit, and so on.

    Args:
        keys: R distinct keys of `row_key`.
        most_rows: P >= 1, public.

    Returns:
        For each pass, in the order of the keys' bits, its (n,) int64 row indices, ascending; no
        pass is empty unless there are no rows at all, which is one pass.

    Raises:
        ValueError: If P < 1, or more than P rows have the same key.

    **Privacy** *A row that comes or goes changes the pass of at most P other rows.* Take the rows
    without it, and the part into whose bits it falls. That part has at most P rows, or is cut. If
    it is still a pass with the row added, only its rows share a pass with a new one. If it has P
    rows, the row makes it P + 1 and it is cut: these P rows have new passes, all of them inside the
    part. Where the row's bits lead into an empty part, it is a pass of its own. Parts elsewhere do
    not look at it. No assumption about the data, the hash or the number of rows is made, and
    nothing is refused or left out. The order of rows within a pass may follow the private data.

    **Source** Ours; a digital search tree with buckets (Fagin et al. 1979), which has no history.
    """
    if most_rows < 1:
        raise ValueError(f"Expected most_rows >= 1, got {most_rows}.")
    joined = np.frombuffer(b"".join(keys), dtype=np.uint8)
    bits = np.unpackbits(joined.reshape(len(keys), _KEY_BYTES), axis=1)
    waiting, passes = [(np.arange(len(keys)), 0)], []
    while waiting:
        rows, depth = waiting.pop()
        if len(rows) <= most_rows:
            passes.append(rows)
        elif depth == 8 * _KEY_BYTES:
            raise ValueError(
                "Expected rows of distinct keys, got more of one key than a pass holds."
            )
        else:
            ones = bits[rows, depth] == 1
            waiting += [(part, depth + 1) for part in (rows[ones], rows[~ones]) if len(part)]
    return passes
