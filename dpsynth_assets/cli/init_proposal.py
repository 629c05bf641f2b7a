"""The method that `dpsynth init` proposes, by numbers that the steward has declared.

Nothing here is told what was counted in the records: a proposal stands in a public file.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from dpsynth_assets.advice.evidence import expected, measured_lines
from dpsynth_assets.datasets import MethodSpec, PrivateDatasetSpec, PublicDataSpec
from dpsynth_assets.datasets.template import Choices, ProposedMethod
from dpsynth_assets.privacy.directed_rounding import declared

LEAST_ROWS = 200
"""Fewer rows than this are neither much to read nor much to train on."""

WRITERS: Mapping[str, Mapping[str, Any]] = {
    "epsvec": {
        "candidates": 60,
        "shots": 1,
        "kept_shots": 12,
        "negatives": 60,
        "max_document_tokens": 72,
        "max_new_tokens": 72,
        "rows": 300,
    },
    "aug_pe": {
        "population": 300,
        "variations": 4,
        "iterations": 3,
        "max_new_tokens": 72,
        "rows": 300,
    },
}
"""Methods whose rows cost nothing, with settings close to those of the leaderboard.

Of those that the plan allows, the one is proposed of which the leaderboard lets expect most; the
first where it says nothing.
"""

CLUSTERS = 4
"""Clusters of a label: as the file's `cluster_histogram` has them."""

_BATCHES = 256
"""Batches that are written at most: bounds what a run computes."""

PREDICTIONS: tuple[tuple[str, Mapping[str, Any]], ...] = (
    *(
        ("mean_clustered", {"expected_batch_size": size, "max_batches": _BATCHES})
        for size in (64, 128, 256)
    ),
    *(
        ("mean_uniform", {"expected_batch_size": size, "max_batches": _BATCHES})
        for size in (64, 128, 256)
    ),
    ("invisible_ink", {"expected_batch_size": 8, "max_batches": _BATCHES}),
)
"""Private prediction at the batch sizes of the papers: each buys so many rows and no more."""


def proposed_method(choices: Choices, base: PublicDataSpec | None) -> ProposedMethod:
    """Chooses the method whose plan fits the declared numbers.

    Private prediction if it buys LEAST_ROWS: `mean_clustered` before others, then what reads the
    fewest contexts for a token. Else the first method that writes any number of rows and is not
    refused.

    Args:
        choices: What the file will declare.
        base: The public base that it will build on; None where no file declares it.

    **Privacy** Reads declared numbers alone. Label values that were found in the records and are
    not confirmed count for nothing.

    Raises:
        ValueError: If the declared numbers contradict one another.
    """
    if choices.records is None:
        why = (
            "No number of records is declared (--records), so nobody can say how many rows private "
            "prediction would buy; {writer} writes any number."
        )
        return _writer(choices, base, why)
    bought = [
        (name, settings, rows)
        for name, settings in PREDICTIONS
        if _batches_fill(choices, name, settings) and (rows := _rows(choices, base, name, settings))
    ]
    name, settings, rows = max(bought, key=_worth, default=("", {}, 0))
    of = f"{choices.records:,} declared records and ε = {declared(choices.epsilon)}"
    if rows >= LEAST_ROWS:
        return ProposedMethod(
            name=name,
            settings=settings,
            why=f"With {of}, {name} buys {rows:,} rows or more.",
            reads_histogram=name == "mean_clustered",
        )
    most = f"{rows} rows at most ({name})" if rows else "no row"
    return _writer(
        choices,
        base,
        f"With {of}, private prediction buys {most}; {{writer}} writes any number of rows.",
    )


def _worth(bought: tuple[str, Mapping[str, Any], int]) -> tuple[int, ...]:
    """Orders what plans buy: enough rows in the fewest forward passes, else the most rows."""
    name, settings, rows = bought
    if rows < LEAST_ROWS:
        return (0, rows)
    return (1, name == "mean_clustered", -settings["expected_batch_size"], rows)


def _batches_fill(choices: Choices, name: str, settings: Mapping[str, Any]) -> bool:
    """Whether equal labels, and clusters of a label, would each have records for a whole batch."""
    cells = math.prod(len(values) for values in choices.labels.values())
    if name == "mean_clustered":
        cells *= CLUSTERS
    return cells * settings["expected_batch_size"] <= (choices.records or 0)


def _writer(choices: Choices, base: PublicDataSpec | None, why: str) -> ProposedMethod:
    names = [name for name, own in WRITERS.items() if _rows(choices, base, name, own)]
    name = max(names or WRITERS, key=lambda each: _expected_share(choices, each))
    return ProposedMethod(name=name, settings=WRITERS[name], why=why.format(writer=name))


def _expected_share(choices: Choices, method: str) -> float:
    """Share of the gap that the leaderboard lets expect; 0 where it says nothing."""
    found = expected(method, choices.epsilon, choices.records, measured_lines())
    return 0.0 if found is None else found.share


def _rows(
    choices: Choices, base: PublicDataSpec | None, name: str, settings: Mapping[str, Any]
) -> int:
    """Rows that a method's plan states if it is the only one; 0 where the plan refuses."""
    from dpsynth_assets.methods.planning import plan_dataset

    spec = _declaration(choices, MethodSpec(method=name, settings=dict(settings)))
    (planned,) = plan_dataset(spec, base).methods
    return 0 if planned.plan.refusal is not None else planned.plan.rows_estimate or 0


def _declaration(choices: Choices, method: MethodSpec) -> PrivateDatasetSpec:
    """The declaration that the file will hold, as far as plans read it."""
    return PrivateDatasetSpec.model_validate(dict(_fields(choices, method)))


def _fields(choices: Choices, method: MethodSpec) -> Iterator[tuple[str, Any]]:
    yield "name", "proposal"
    yield "source", {"path": choices.path or "records.csv"}
    yield "columns", {"text": choices.text, "labels": list(choices.labels)}
    yield "privacy_unit", {"column": choices.unit, "max_records": choices.max_records}
    yield (
        "public_facts",
        {
            "labels": {name: list(values) for name, values in choices.labels.items()},
            "records": choices.records,
        },
    )
    yield "budget", {"epsilon": choices.epsilon, "delta": choices.delta}
    if method.method == "mean_clustered":
        yield "cluster_histogram", {"budget_share": 0.02, "clusters_per_label": CLUSTERS}
    yield "methods", [method]
