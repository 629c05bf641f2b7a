"""Methods that are weighed, with settings of the leaderboard and of the papers, and what they ask.

A setting that belongs to the cohort, such as `expected_batch_size` of private prediction, is tried
at the papers' sizes; the plan decides which of them a cohort can pay.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

CLUSTERS = 4
"""Clusters of a label: as the file that `init` writes has them."""

BATCHES = 256
"""Batches of private prediction at most: bounds what a run computes."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A method with settings.

    Attributes:
        line: Name of its line on the leaderboard.
        method: Name of the registered method.
        settings: Its settings.
        declared: Further fields of the dataset file that it needs.
        base: Fields of the public base that it needs: defaults where its model is pretrained.
        asks: What a steward has to declare for it, in words.
        rows_setting: Setting that must grow with the rows: then the whole run grows with them.
        batch: Records that every label, or every cluster of a label, must have for one batch.
        first: Method of the same file that it builds on, with half of the budget; empty: none.
        concerns: Section of the dataset file without which it is for nobody: `structured` or
            `secrets`; none: it is for any text.
    """

    line: str
    method: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    declared: Mapping[str, Any] = field(default_factory=dict)
    base: Mapping[str, Any] = field(default_factory=dict)
    asks: str = "nothing further"
    rows_setting: str | None = None
    batch: int = 0
    first: Mapping[str, Any] = field(default_factory=dict)
    concerns: Literal["structured", "secrets"] | None = None


_HISTOGRAM = {"cluster_histogram": {"budget_share": 0.02, "clusters_per_label": CLUSTERS}}
_NUMBER = "the number of records (public_facts.records)"

_TOPICS: Mapping[str, Any] = {"topic_histogram": {}}
_FINE_TUNED = {"conditional_generator": {"kind": "language_model"}}
_CTCL_FIRST = {
    "method": "ctcl",
    "budget_share": 0.5,
    "settings": {
        "steps": 4,
        "expected_batch_size": 256,
        "learning_rate": 0.01,
        "max_document_tokens": 72,
        "rows": 400,
    },
}
_BEHIND_CTCL = f"{_NUMBER}; topic_histogram; ctcl before it, with half of the budget"
_EPSVEC = {
    "candidates": 100,
    "negatives": 100,
    "clip_documents": 200,
    "shots": 1,
    "kept_shots": 12,
    "max_document_tokens": 72,
    "max_new_tokens": 72,
}

CANDIDATES: tuple[Candidate, ...] = (
    *(
        Candidate(
            line="mean_svt",
            method="mean_svt",
            settings={"expected_batch_size": size, "max_batches": BATCHES, "svt_threshold": 1.0},
            asks=f"{_NUMBER}; structured",
            batch=size,
            concerns="structured",
        )
        for size in (64, 128, 256)
    ),
    Candidate(
        line="ctcl",
        method="ctcl",
        settings={"max_document_tokens": 72},
        declared=_TOPICS,
        base=_FINE_TUNED,
        asks=f"{_NUMBER}; topic_histogram",
    ),
    Candidate(
        line="aug_pe",
        method="aug_pe",
        settings={"population": 400, "variations": 4, "iterations": 3, "max_new_tokens": 72},
        rows_setting="population",
    ),
    Candidate(
        line="epsvec",
        method="epsvec",
        settings=_EPSVEC,
    ),
    Candidate(
        line="aug_pe_from_ctcl",
        method="aug_pe_from_corpus",
        settings={
            "corpus": "ctcl",
            "population": 400,
            "variations": 4,
            "iterations": 2,
            "max_new_tokens": 72,
        },
        declared=_TOPICS,
        base=_FINE_TUNED,
        asks=_BEHIND_CTCL,
        rows_setting="population",
        first=_CTCL_FIRST,
    ),
    Candidate(
        line="epsvec_on_ctcl",
        method="epsvec_on_generator",
        settings={"generator": "ctcl", **_EPSVEC},
        declared=_TOPICS,
        base=_FINE_TUNED,
        asks=_BEHIND_CTCL,
        first=_CTCL_FIRST,
    ),
    *(
        Candidate(
            line="mean_clustered",
            method="mean_clustered",
            settings={"expected_batch_size": size, "max_batches": BATCHES},
            declared=_HISTOGRAM,
            asks=f"{_NUMBER}; cluster_histogram",
            batch=size,
        )
        for size in (64, 128, 256)
    ),
    *(
        Candidate(
            line="mean_uniform",
            method="mean_uniform",
            settings={"expected_batch_size": size, "max_batches": BATCHES},
            asks=_NUMBER,
            batch=size,
        )
        for size in (64, 128, 256)
    ),
    Candidate(
        line="invisible_ink",
        method="invisible_ink",
        settings={"expected_batch_size": 8, "max_batches": BATCHES},
        asks=_NUMBER,
        batch=8,
    ),
    Candidate(
        line="secpe",
        method="secpe",
        settings={"population": 400, "variations": 4, "iterations": 3, "max_new_tokens": 72},
        asks="secrets, and a tight accountant; it protects them alone, not whole records",
        rows_setting="population",
        concerns="secrets",
    ),
)

UNCONCERNED: Mapping[str, str] = {
    "structured": "is for text with a fixed structure, such as JSON; declare `structured`",
    "secrets": "protects declared secret words alone, not the whole record; declare `secrets`",
}
"""Why a candidate is for nobody who has not declared a section."""

OTHERS: Mapping[str, str] = {
    "median_clustered": "its ε is known only afterwards (ex post); declare accepts_ex_post",
    "few_shot": "shows records to the model under zero-out batches of few tokens; see mean_uniform",
    "mean_with_shots": "builds on another method's corpus, which is paid for beside it",
    "mean_svt_on_generator": "builds on another method's generator, which is paid for beside it",
    "dp_fine_tuning": "is ctcl without topics; on Yelp ctcl was better by energy distance and "
    "accuracy (docs/benchmarks.md)",
    "resampled": "chooses rows of another method's corpus; it writes none itself",
    "downstream_fine_tuning": "releases a trained model, no text",
}
"""Registered methods that are no candidate, and why."""
