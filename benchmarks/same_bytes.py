"""Whether two trees of this project release the same bytes: every method, noise from one sequence.

    python benchmarks/same_bytes.py TREE OTHER [METHOD …]

Every method runs once in each tree through `run_method`, on invented records and models with random
weights, with its noise replaced in that process by a fixed sequence. Prints one line a method:
whether texts, labels, released values and the requests that the ledger charged are equal. Such
releases protect nobody: the records are invented.
"""

import hashlib
import importlib
import itertools
import json
import os
import secrets
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parents[1]
LABELS = ["billing", "delivery"]
TERMS = {"epsilon": 200.0, "delta": 1e-5, "labels": LABELS}
DECLARED = ({"accepts_ex_post": True}, {"accountant": "tight"})
SECRETS = {
    "kinds": [
        {
            "name": "case",
            "detector": "regex",
            "pattern": "case [0-9]+",
            "max_records": 1,
            "posterior": 0.2,
            "prior": 0.01,
        }
    ]
}


def prepare(folder: Path) -> None:
    """Writes public documents, models, invented records and the settings of every method."""
    sys.path.append(str(HERE))
    from dpsynth_assets_tests.security import leak_planting

    leak_planting.plant(folder)
    lines = [json.dumps({"text": letter(n), "label": LABELS[n % 2]}) for n in range(100)]
    (folder / "records.jsonl").write_text("\n".join(lines))
    secpe = {"secpe": {**leak_planting._EVOLUTION, "clusters": 4}}
    (folder / "settings.json").write_text(json.dumps(leak_planting.rehearsed() | secpe))


def letter(number: int) -> str:
    """An invented record."""
    days = number * 7 % 60 + 2
    if number % 2:
        return f"the parcel number {number % 17} is {days} days late, kind regards from the hills"
    return f"the invoice shows {days} euros too much, please help me soon with case {number % 13}"


class Sequence:
    """Bytes that every process draws alike: each kind of draw has a sequence of its own."""

    def __init__(self) -> None:
        """Begins every sequence."""
        self.drawn: Counter[str] = Counter()

    def bytes(self, kind: str, count: int) -> np.ndarray:
        """The next (count,) uint8 of a kind."""
        self.drawn[kind] += 1
        name = f"{kind}/{self.drawn[kind]}"
        return np.frombuffer(hashlib.shake_256(name.encode()).digest(count), np.uint8).copy()

    def words(self, count: int) -> np.ndarray:
        """The next (count,) uint64."""
        return self.bytes("words", 8 * count).view(np.uint64)

    def uniform(self, count: int) -> np.ndarray:
        """The next (count,) float64 in (0, 1)."""
        return ((self.bytes("uniform", 8 * count).view(np.uint64) >> 11) + 0.5) * 2.0**-53

    def integers(self, values: Any, scale: float) -> list[int]:
        """Each value with logistic noise of a scale, rounded: it only has to look like noise."""
        odds = self.uniform(max(1, len(values)))
        noise = np.rint(scale * np.log(odds / (1 - odds)))
        return [int(value) + int(more) for value, more in zip(values, noise, strict=False)]


class Uniform:
    """Uniforms under the two names that trees call them by."""

    def __init__(self, draw: Callable[[int], np.ndarray]) -> None:
        """Draws from a sequence."""
        self.random = draw

    def __call__(self, count: int) -> np.ndarray:
        """Draws (count,) float64."""
        return self.random(count)


def replace_noise() -> Sequence:
    """Puts one sequence in the place of all noise and all random names of this process."""
    noise = importlib.import_module("dpsynth_assets.privacy.noise")
    drawn = Sequence()
    secrets.token_hex = lambda size=16: drawn.bytes(f"hex{size}", size).tobytes().hex()  # type: ignore[assignment,misc]
    secrets.token_bytes = lambda size=32: drawn.bytes("key", size).tobytes()  # type: ignore[assignment,misc]
    changed = {
        "secure_words": drawn.words,
        "secure_uniform": Uniform(drawn.uniform),
        "_fresh_words": drawn.words,
        "_fresh_uniforms": drawn.uniform,
        "_entropy": lambda count: bytearray(drawn.bytes("entropy", count).tobytes()),
        "discrete_laplace": drawn.integers,
        "discrete_gaussian": drawn.integers,
    }
    for name, draw in changed.items():
        setattr(noise, name, draw)
    return drawn


def released(tree: str, folder: Path, wanted: list[str]) -> dict[str, dict[str, str]]:
    """What each method releases in a tree, as digests."""
    sys.path.insert(0, tree)
    drawn = replace_noise()
    import polars as pl
    import torch

    from dpsynth_assets import PublicBase

    torch.set_num_threads(1)
    generator = {"kind": "pretrained", "model": str(folder / "generator")}
    base = PublicBase(
        pl.read_ndjson(folder / "public.jsonl"),
        language_model={"kind": "pretrained", "model": str(folder / "model")},
        conditional_generator=generator,
        clusters={"count": 4},
    )
    settings = json.loads((folder / "settings.json").read_text())
    told = {}
    for method in wanted or settings:
        drawn.drawn.clear()
        told[method] = released_by(method, settings, folder, base)
    return told


def released_by(method: str, settings: dict[str, Any], folder: Path, base: Any) -> dict[str, str]:
    """Digests of what one method releases, or the error that it ends with."""
    import polars as pl

    from dpsynth_assets import run_method
    from dpsynth_assets.privacy.ledger import Ledger

    own = settings[method]
    behind = [own[key] for key in ("corpus", "generator") if key in own]
    declared: dict[str, Any] = {
        "budget": DECLARED[method == "secpe"],
        "public_facts": {"records": 100},
        "methods": [{"method": name, "settings": settings[name]} for name in behind],
    }
    if method == "secpe":
        declared["secrets"] = SECRETS
    place = Path(tempfile.mkdtemp(dir=folder))
    ledger = Ledger(f"sqlite:///{place / 'ledger.sqlite'}")
    try:
        made = run_method(
            method, pl.read_ndjson(folder / "records.jsonl"), base, settings=own,
            cohort=f"c_{method}", declared={key: value for key, value in declared.items() if value},
            ledger=ledger, store=place / "releases", **TERMS,
        )  # fmt: skip
    except Exception as problem:  # noqa: BLE001 (one method's failure is told, and the rest run)
        return {"failed": f"{type(problem).__name__}: {problem}"}
    corpus = pl.DataFrame() if made.corpus is None else made.corpus
    columns = {name: corpus[name].to_list() for name in ("text", "label") if name in corpus.columns}
    entries = ledger.entries()
    charged = [repr(entry.request()) for entry in entries if entry.kind == "reserve"]
    values = [entry.artifact_digest for entry in entries if entry.kind == "commit"]
    return {
        name: hashlib.sha256(json.dumps(value).encode()).hexdigest()
        for name, value in (*columns.items(), ("requests", charged), ("values", values))
    }


def asked(tree: str, folder: Path, wanted: list[str]) -> dict[str, dict[str, str]]:
    """Lets a process of its own run the methods of a tree."""
    command = [sys.executable, __file__, "--released", tree, str(folder), *wanted]
    surroundings = {
        **os.environ,
        "PYTHONPATH": tree,
        "OMP_NUM_THREADS": "1",
        "DPSYNTH_HOME": str(folder / f"home-{secrets.token_hex(4)}"),
    }
    done = subprocess.run(command, env=surroundings, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> int:
    """Runs both trees and compares; returns 1 where a method differs."""
    one, other, *wanted = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="same-bytes-") as scratch:
        prepare(Path(scratch))
        here, there = (asked(tree, Path(scratch), wanted) for tree in (one, other))
    differing = 0
    for method in dict.fromkeys(itertools.chain(here, there)):
        mine, theirs = here.get(method, {}), there.get(method, {})
        parts = [
            f"{part} {'equal' if mine.get(part) == theirs.get(part) else 'DIFFER'}"
            for part in sorted({*mine, *theirs})
        ]
        failed = mine.get("failed") or theirs.get("failed")
        differing += bool(failed) or mine != theirs
        print(f"{method:24}", failed or ", ".join(parts))
    return int(differing > 0)


if __name__ == "__main__":
    if sys.argv[1] == "--released":
        print(json.dumps(released(sys.argv[2], Path(sys.argv[3]), sys.argv[4:])))
    else:
        sys.exit(main())
