"""Times the exact search of nearest public rows beside the plain matrix product.

    PYTHONPATH=. python benchmarks/nearest.py [--records 100000] [--rows 1000] [--dimension 384]
        [--repeats 5]

Contenders, interleaved so that a busy machine slows all alike: the product of blocks alone; the
product and its largest entry, which is how nearest rows were found before version 0.2.0 and moves
other records where two rows are nearly equally near; and the exact search of `privacy.nearest`,
by inner product as centres and topics use it, and by distance as votes do. Once with one thread,
once with two, each in a process of its own. Prints medians of the repeats, in seconds of the
clock and of processors, and their ratios to the product and its largest entry. Embeddings are
random unit vectors; --ties puts every record near a tie, the worst case that a dataset can be.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np

BLOCK_ROWS = 256
TURNS = ("1", "2")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--rows", type=int, default=1_000, help="public rows")
    parser.add_argument("--dimension", type=int, default=384)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--ties", action="store_true", help="every record lies near a tie")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    options = arguments()
    if options.here:
        measure(options)
        return
    for threads in TURNS:
        names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
        print(f"{threads} thread{'s' if threads > '1' else ''}")
        subprocess.run(
            [sys.executable, *sys.argv, "--here"],
            env=os.environ | dict.fromkeys(names, threads),
            check=True,
        )


def measure(options: argparse.Namespace) -> None:
    """Times the contenders in turn and prints a line each."""
    records, public = vectors(options)
    ways = contenders(records, public)
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for way in ways.values():  # Warms caches and threads.
        way()
    for _ in range(options.repeats):
        for name, way in ways.items():
            wall, cpu = time.perf_counter(), time.process_time()
            way()
            times[name].append((time.perf_counter() - wall, time.process_time() - cpu))
    medians = {name: np.median(each, axis=0) for name, each in times.items()}
    for name, (wall, cpu) in medians.items():
        ratios = " ".join(f"{r:5.2f}x" for r in (wall, cpu) / medians["product and largest"])
        print(f"  {name:22s} {wall:6.2f} s  {cpu:6.2f} s of processors  {ratios}")


def vectors(options: argparse.Namespace) -> tuple[np.ndarray, np.ndarray]:
    """Records and public rows of unit length; with ties, each record twice near its own two."""
    from dpsynth_assets.attacks.audits.records import near_ties

    if options.ties:
        tied, public = near_ties(options.dimension, ties=options.rows // 2)
        copies = -(-options.records // (options.rows // 2))
        return np.tile(tied[::3], (copies, 1))[: options.records], public
    draw = np.random.default_rng(0)
    parts = [
        draw.standard_normal((count, options.dimension), dtype=np.float32)
        for count in (options.records, options.rows)
    ]
    records, public = (part / np.linalg.norm(part, axis=1, keepdims=True) for part in parts)
    return records, public


def contenders(records: np.ndarray, public: np.ndarray) -> dict[str, Callable[[], object]]:
    """The ways of finding nearest rows, each without arguments."""
    from dpsynth_assets.privacy.nearest import PublicRows, nearest_rows

    transposed = np.ascontiguousarray(public.T)
    room = np.empty((BLOCK_ROWS, len(public)), dtype=np.float32)

    def product() -> None:
        for start in range(0, len(records), BLOCK_ROWS):
            block = records[start : start + BLOCK_ROWS]
            np.matmul(block, transposed, out=room[: len(block)])

    def product_and_largest() -> np.ndarray:
        nearest = np.empty(len(records), dtype=np.int64)
        for start in range(0, len(records), BLOCK_ROWS):
            block = records[start : start + BLOCK_ROWS]
            nearest[start : start + BLOCK_ROWS] = (block @ transposed).argmax(axis=1)
        return nearest

    return {
        "product alone": product,
        "product and largest": product_and_largest,
        "exact, inner product": lambda: nearest_rows(records, PublicRows(public, distance=False)),
        "exact, distance": lambda: nearest_rows(records, PublicRows(public, distance=True)),
    }


if __name__ == "__main__":
    main()
