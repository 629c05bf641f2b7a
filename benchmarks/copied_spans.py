"""What share of pasted private spans the comparison finds, by their length.

    python benchmarks/copied_spans.py [--spans 300] [--records 2500]

Spans of a real corpus's records are pasted into other records of it, which is then read as
a synthetic corpus. Records that hold no pasted span say how often it raises a false alarm. Needs
the real corpora: DPSYNTH_REAL_DATA, or ../shared/data beside the project.
"""

import argparse
import os
from pathlib import Path

import numpy as np
import polars as pl

from dpsynth_assets.attacks.overlap import HeldRecords, verbatim_share

CORPORA = ("yelp_reviews", "ag_news")
LENGTHS = (12, 14, 20, 30)
PUBLIC_PARAGRAPHS = 8_000
BEFORE = 15
"""Words of the carrier that stand before a pasted span."""


def main() -> None:
    arguments = parse()
    data = Path(arguments.data)
    if not data.is_dir():
        print(f"skipped: no real corpora at {data}")
        return
    random = np.random.default_rng(0)
    public = pl.read_parquet(data / "wikitext2.parquet")["text"].to_list()[:PUBLIC_PARAGRAPHS]
    for name in CORPORA:
        texts = pl.read_parquet(data / f"{name}.parquet")["text"].drop_nulls().to_list()
        random.shuffle(texts)
        private, others = texts[: arguments.records], texts[arguments.records :]
        carriers, seen = others[: arguments.spans], [HeldRecords(texts=private)]
        print(f"{name}: {verbatim_share(carriers, seen, public):.3f} of carriers alone")
        for length in LENGTHS:
            pasted = [paste(carrier, private, length, random) for carrier in carriers]
            found = verbatim_share(pasted, seen, public)
            print(f"{name}: {found:.3f} of {len(pasted)} spans of {length} words found")


def paste(carrier: str, private: list[str], length: int, random: np.random.Generator) -> str:
    """Puts a span of a random record that is long enough into a carrier."""
    words: list[str] = []
    while len(words) < length:
        words = private[random.integers(len(private))].split()
    start = random.integers(len(words) - length + 1)
    own = carrier.split()
    return " ".join([*own[:BEFORE], *words[start : start + length], *own[BEFORE:]])


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    parser.add_argument("--data", default=os.environ.get("DPSYNTH_REAL_DATA", beside))
    parser.add_argument("--spans", type=int, default=300)
    parser.add_argument("--records", type=int, default=2500)
    return parser.parse_args()


if __name__ == "__main__":
    main()
