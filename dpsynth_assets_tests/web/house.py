"""A small house for the web UI: one public base, and two cohorts that a walk can finish.

`letters` goes from public data to evaluation. `memos` is stopped by its release gate: its list of
canaries names common pieces of public text, so its corpus is bound to contain some.
"""

from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl

from dpsynth_assets.orchestration.assets.keys import PUBLIC_BASES, level_group
from dpsynth_assets.tags import INTERNAL, RELEASED, SENSITIVE
from dpsynth_assets_tests.declared import written
from dpsynth_assets_tests.end_to_end.conftest import documents, write_public

COHORT, METHOD = "letters", "mean_clustered"
BLOCKED, BLOCKED_METHOD = "memos", "mean_uniform"
DEMO_COHORT, DEMO_METHOD, DEMO_UNSPENT = "enquiries", "epsvec", "feedback"
BASE = "letter_base"
TICK_EVERY_MINUTE = "* * * * *"
CANARY_LETTERS = 6
COMMON_PIECES = 300

_DECODING = {
    "expected_batch_size": 40, "max_batches": 3, "max_document_tokens": 40,
    "max_example_tokens": 40, "min_tokens_for_new_document": 8, "temperature": 1.0,
}  # fmt: skip


def groups(cohort: str, method: str = METHOD) -> dict[str, str]:
    """Groups of the graph that a walk opens."""
    return {
        "public": PUBLIC_BASES,
        "records": level_group(cohort, SENSITIVE),
        "method": f"{level_group(cohort, RELEASED)}/{method}",
        "evaluation": INTERNAL,
    }


def build_house(folder: Path) -> Path:
    """Writes sources and dataset files; returns the folder for DPSYNTH_DATASETS."""
    public = write_public(folder)
    for name, seed, tone in ((COHORT, 2, "I am upset that "), (BLOCKED, 3, "I hear that ")):
        _with_ids(documents(400, seed=seed, tone=tone)).write_ndjson(folder / f"{name}.jsonl")
    (folder / "canaries.txt").write_text("\n".join(_common_pieces(public)))
    datasets = folder / "datasets"
    written(datasets / "base.yaml", _base(folder), "PublicData")
    written(datasets / "letters.yaml", _letters(folder))
    written(datasets / "memos.yaml", _memos(folder))
    return datasets


def _common_pieces(texts: list[str]) -> list[str]:
    """What the public model writes most: pieces of six letters, blanks and marks left out."""
    pieces: Counter[str] = Counter()
    for text in texts:
        letters = "".join(filter(str.isalnum, text.casefold()))
        pieces.update(
            letters[start : start + CANARY_LETTERS]
            for start in range(len(letters) - CANARY_LETTERS + 1)
        )
    return [piece for piece, _ in pieces.most_common(COMMON_PIECES)]


def _with_ids(records: pl.DataFrame) -> pl.DataFrame:
    return records.with_row_index("number").select(
        "text", "label", pl.format("T{}", "number").alias("id")
    )


def _base(folder: Path) -> dict[str, Any]:
    return {
        "name": BASE,
        "description": "Letters of a tiny public grammar.",
        "source": {"path": str(folder / "public.parquet")},
        "columns": {"labels": ["label"]},
        "language_model": {"kind": "pretrained", "model": str(folder / "language_model")},
        "clusters": {"count": 6},
    }


def _cohort(folder: Path, name: str) -> dict[str, Any]:
    return {
        "name": name,
        "source": {"path": str(folder / f"{name}.jsonl")},
        "columns": {"labels": ["label"], "id": "id"},
        "public_facts": {"labels": {"label": ["billing", "delivery"]}},
        "held_out_fraction": 0.25,
        "public_data": BASE,
        "owners": ["team:privacy"],
    }


def _letters(folder: Path) -> dict[str, Any]:
    return _cohort(folder, COHORT) | {
        "description": "Letters to one invented organisation.",
        "budget": {"epsilon": 15.0, "delta": 1e-5},
        "cluster_histogram": {"budget_share": 0.1, "clusters_per_label": 2},
        "methods": [{"method": METHOD, "settings": _DECODING}],
        "evaluation": {"rows": 40, "references": False},
        "schedule": {"cron": TICK_EVERY_MINUTE},
    }


def _memos(folder: Path) -> dict[str, Any]:
    cohort = _cohort(folder, BLOCKED)
    cohort["public_facts"]["records"] = 400
    return cohort | {
        "description": "Memos whose release gate is bound to fire.",
        "budget": {"epsilon": 15.0, "delta": 1e-5},
        "methods": [{"method": BLOCKED_METHOD, "settings": _DECODING}],
        "evaluation": {"canaries": f"{folder}/canaries.txt", "references": False, "rows": 40},
        "schedule": {"cron": "@monthly"},  # Stays off; its tick is tested before anything is spent.
    }
