"""Ranks the methods that suit declared data, and says why the others cannot be used."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import ValidationError

from dpsynth_assets.advice.evidence import Expectation, Measured, expected, measured_lines
from dpsynth_assets.advice.minutes import expected_minutes
from dpsynth_assets.datasets import PrivateDatasetSpec, PublicDataSpec
from dpsynth_assets.methods.capabilities import CLUSTERS, Candidate, DeclaredFacts
from dpsynth_assets.models.row_rules import SCHEMA

_SCORED_ROWS = 400
"""Rows of the leaderboard's corpora."""

_UNCONCERNED = {
    "structured": "is for text with a fixed structure, such as JSON; declare `structured`",
    "secrets": "protects declared secret words alone, not the whole record; declare `secrets`",
}
"""Why a candidate needs a section to be declared."""


@dataclass(frozen=True, kw_only=True)
class Offer(Candidate):
    """A candidate that fits, as a method of the dataset file.

    Attributes:
        method: Name of the registered method.
        first: Method of the same file that it builds on, with its share and settings; empty: none.
        epsilon: ε of its release and of the histograms it needs; None where it has none.
        rows: Rows it writes: as many as are asked for, or as its budget buys.
        expectation: What the leaderboard lets one expect; None: it has no cell of this method.
        minutes: Minutes of a whole run on this machine, with what it builds on and scores; None
            where they are not known.
        follows_schema: Whether every row is a valid record of the declared schema.
        rows_free: Whether it writes any number of rows.
    """

    method: str
    first: dict[str, Any]
    epsilon: float | None
    rows: int
    expectation: Expectation | None
    minutes: float | None
    follows_schema: bool = False
    rows_free: bool = False

    @property
    def title(self) -> str:
        """The method, and which one before it."""
        return f"{self.method} after {self.first['method']}" if self.first else self.method

    @property
    def share(self) -> float:
        """Expected share of the gap; below all others where nothing was measured."""
        return -math.inf if self.expectation is None else self.expectation.share


@dataclass(frozen=True, kw_only=True)
class Advice:
    """What fits, best first, and what does not.

    Attributes:
        offers: Methods that fit.
        others: Other methods and why they do not fit.
        notes: What holds for all.
    """

    offers: tuple[Offer, ...]
    others: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "others": dict(self.others)}


def advise(
    spec: PrivateDatasetSpec,
    base: PublicDataSpec | None,
    *,
    rows: int | None = None,
    cells: Sequence[Measured] | None = None,
    timed: bool = False,
) -> Advice:
    """Weighs every method from public facts alone.

    Args:
        spec: A cohort's declaration; its methods and histograms are put aside.
        base: The public base it builds on.
        rows: Rows that are wanted; None: 400.
        cells: Lines of the leaderboard; None: that of this package.
        timed: Whether minutes on this machine are estimated, which may open the public models.

    **Privacy** Reads declarations and the leaderboard's scores of public corpora; no record, no
    ledger, no score of the cohort.
    """
    from dpsynth_assets.methods.registry import REGISTRY

    known = measured_lines() if cells is None else cells
    wanted = rows or _SCORED_ROWS
    facts = DeclaredFacts(
        rows=wanted, labels=len(spec.composite_labels[0]), words=spec.public_facts.words
    )
    offers: dict[str, Offer] = {}
    others: dict[str, str] = {}
    for name, method in REGISTRY.items():
        weighed = method.advice.candidates(facts)
        if not weighed:
            others[name] = method.advice.unadvised
        for candidate in weighed:
            found = _offer(candidate, name, facts, spec, base, known, timed=timed)
            if isinstance(found, Offer):
                offers[candidate.line] = found
                others.pop(candidate.line, None)
                break
            others[candidate.line] = found
    ordered = sorted(offers.values(), key=_place)
    return Advice(
        offers=tuple(ordered),
        others=tuple(others.items()),
        notes=tuple(_notes(spec, known, wanted)),
    )


def _place(offer: Offer) -> tuple[bool, float, bool, bool]:
    """Orders offers; where nothing is measured, what a section is for, then any number of rows."""
    return (not offer.follows_schema, -offer.share, offer.concerns is None, not offer.rows_free)


def _offer(
    candidate: Candidate,
    name: str,
    facts: DeclaredFacts,
    spec: PrivateDatasetSpec,
    base: PublicDataSpec | None,
    cells: Sequence[Measured],
    *,
    timed: bool,
) -> Offer | str:
    """The candidate as an offer of a method, or why it does not fit."""
    from dpsynth_assets.methods.planning import plan_dataset

    unfit = _unfit(candidate, spec)
    if unfit:
        return unfit
    first, wanted, own = _first(candidate, facts), facts.rows, base
    if base is not None and candidate.base:
        own = PublicDataSpec.model_validate(
            {**base.model_dump(mode="json", exclude_unset=True), **candidate.base}
        )
    try:
        with_method = _with_method(spec, candidate, name, first)
        plan = plan_dataset(with_method, own)
    except ValidationError as error:
        return str(error.errors()[0]["msg"])
    except ValueError as error:
        return str(error).splitlines()[0]
    (*_, planned) = plan.methods
    if planned.plan.refusal is not None:
        return planned.plan.refusal
    free = planned.rows_are_free
    bought = wanted if free else planned.plan.rows_estimate or 0
    if not free and bought < wanted:
        return f"its budget pays for {bought:,} rows, but {wanted:,} are asked for"
    epsilon = spec.budget.epsilon / spec.budget.rounds
    domain = base.domain if base else ""
    return Offer(
        **vars(candidate),
        method=name,
        first=first,
        epsilon=plan.total_epsilon if plan.events else None,
        rows=bought,
        # The leaderboard's texts are free text: nothing follows for records with a structure.
        expectation=None
        if spec.structured is not None
        else expected(candidate.line, epsilon, spec.public_facts.records, cells, domain),
        minutes=expected_minutes(with_method, plan, own).whole if timed and own else None,
        follows_schema=SCHEMA in planned.plan.parameters,
        rows_free=free,
    )


def _first(candidate: Candidate, facts: DeclaredFacts) -> dict[str, Any]:
    """The method that a candidate builds on, with half of the budget; empty: none."""
    from dpsynth_assets.methods.registry import get_method

    if not candidate.after:
        return {}
    (own, *_) = get_method(candidate.after).advice.candidates(facts)
    return {"method": candidate.after, "budget_share": 0.5, "settings": dict(own.settings)}


def _unfit(candidate: Candidate, spec: PrivateDatasetSpec) -> str:
    """Why the declared facts alone rule a candidate out; empty if they do not."""
    if candidate.concerns is not None and getattr(spec, candidate.concerns) is None:
        return _UNCONCERNED[candidate.concerns]
    if not candidate.batch:
        return ""
    records = spec.public_facts.records
    if records is None:
        return "needs the number of records, which is not declared"
    labels = math.prod(len(values) for values in spec.public_facts.labels.values())
    cells = max(1, labels) * (CLUSTERS if "cluster_histogram" in candidate.declared else 1)
    if cells * candidate.batch > records:
        return (
            f"its batches hold {candidate.batch} records: {records:,} records in {cells} labels or "
            "clusters do not fill one batch in each"
        )
    return ""


def _with_method(
    spec: PrivateDatasetSpec, candidate: Candidate, name: str, first: dict[str, Any]
) -> PrivateDatasetSpec:
    """The declaration with this method, what it builds on and the histograms that it needs.

    Priced by zCDP, in milliseconds: tight accounting buys a little more. What is promised to
    secrets, which zCDP cannot price, is asked of no method that protects whole records.
    """
    of_secrets = candidate.concerns == "secrets"
    left_out = {"methods", "cluster_histogram", "topic_histogram"}
    kept = spec.model_dump(
        mode="json", exclude_unset=True, exclude=left_out | (set() if of_secrets else {"secrets"})
    )
    if not of_secrets:
        kept["budget"] = {**kept["budget"], "accountant": "zcdp"}
    methods = [*([first] if first else []), {"method": name, "settings": candidate.settings}]
    return type(spec).model_validate({**kept, **candidate.declared, "methods": methods})


def _notes(spec: PrivateDatasetSpec, cells: Sequence[Measured], wanted: int) -> Iterator[str]:
    datasets = list(dict.fromkeys(cell.dataset for cell in cells))
    if cells:
        yield (
            f"Expected shares of the gap come from {len(cells)} results on {', '.join(datasets)} "
            "(docs/leaderboard.md), with SmolLM2-135M and at most 400 rows. For other texts the "
            "order is uncertain: try two methods on public text like yours first (`dpsynth "
            "benchmark`)."
        )
    else:
        yield "The leaderboard has no result, so no score can be predicted."
    if spec.budget.accountant == "tight":
        yield "These prices use zCDP; tight accounting is cheaper, most where a method fine-tunes."
    if spec.public_facts.records is None:
        yield (
            "No number of records is declared (public_facts.records): the shares shown are those "
            "measured with the smallest number of records."
        )
    if wanted > 10 * _SCORED_ROWS:
        yield f"{wanted:,} rows are far more than the benchmark scored: expect near-duplicates."
    if spec.constraining_schema is not None:
        yield (
            "Records are structured: methods that write only valid records come first. In private "
            "prediction, text that the schema determines costs no budget; the other methods write "
            "any number of records (docs/benchmarks.md)."
        )
    elif spec.structured is not None:
        yield (
            "Records are structured, and decoding is not constrained to their schema "
            "(structured.constrained_decoding): many rows of any method will not be valid."
        )
    if spec.secrets is not None:
        yield (
            "Secrets are declared: secpe protects these words alone; every other method protects "
            "whole records, and `dpsynth plan` says how well it protects the secrets."
        )
