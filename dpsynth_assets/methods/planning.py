"""The plan of a dataset: what every declared release will cost, before private data is read.

A budget share is a share of ρ (zCDP), because ρ adds up where ε does not: shares that sum to one
cost the whole budget, and no part of it is lost to composition. `tight` cohorts are sized the same
way and then scaled as a whole until the privacy-loss distribution of all releases together meets
the budget (`plan_dataset`).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from statistics import NormalDist
from typing import Any

from dpsynth_assets.datasets import (
    HistogramSpec,
    MethodSpec,
    PrivateDatasetSpec,
    PublicDataSpec,
)
from dpsynth_assets.datasets.standing import declared_base
from dpsynth_assets.methods.base import CohortTerms, Method, priced, refused, spends
from dpsynth_assets.methods.dataset_plan import (
    DatasetPlan,
    Planned,
    PlannedMethod,
    budget_terms,
    cohort_terms,
)
from dpsynth_assets.methods.plan_cache import remembered
from dpsynth_assets.methods.private_prediction.config import MeanUniformConfig
from dpsynth_assets.methods.provenance import refusal_for_inputs
from dpsynth_assets.methods.registry import REGISTRY, bound_method, get_method
from dpsynth_assets.methods.shared_histograms import ClusterHistogramRelease, TopicHistogramRelease
from dpsynth_assets.methods.stages import SHARED, MethodPlan
from dpsynth_assets.privacy.accounting import epsilon_of
from dpsynth_assets.privacy.events import Event
from dpsynth_assets.privacy.gaussian_dp import gaussian_mu
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.ledger import SecretTerms
from dpsynth_assets.privacy.renyi import zcdp_epsilon, zcdp_rho

SPARE = 1.1
"""Documents that a reference samples for each row that is asked for: a few are blank."""

_BELOW = 1.0 - 1e-9
"""Keeps a plan of shares that sum to one from overspending by a rounding error."""


def plan_dataset(spec: PrivateDatasetSpec, base: PublicDataSpec | None = None) -> DatasetPlan:
    """Prices every declared release from public facts alone.

    Tight accounting prices a plan as a whole, so shares of ρ that sum to one cost less (or, with
    many small releases, a little more) than the budget: the largest factor on every share is found
    at which the composed plan costs at most ε. It is kept in `DPSYNTH_HOME`, since composing
    privacy-loss distributions is too slow for opening the web UI; regardless of the file, the
    ledger composes the plan again before it charges.

    Args:
        spec: The cohort's declaration.
        base: The public base it builds on; None: the one that a dataset file declares.

    Raises:
        ValueError: If a method or its settings are unknown.
    """
    base = base or declared_base(spec.public_data)
    terms = cohort_terms(spec, base)
    if terms.accountant == "zcdp":
        return _plan_at(spec, base, terms, 1.0)
    if not any(_spends(entry, terms) for entry in spec.methods):
        plan = _plan_at(spec, base, terms, 1.0)
        if not plan.events:
            return plan  # Nothing costs ε, so nothing can be scaled to it.

    def events(scale: float) -> tuple[Event, ...]:
        return _plan_at(spec, base, terms, scale).events * spec.budget.rounds

    def find() -> float:
        cost = lambda factor: epsilon_of(events(factor), terms.delta, "tight")  # noqa: E731
        largest = largest_scale(_topics_share(spec, terms))
        return math.floor(_search(cost, terms.epsilon, largest) * _DIGITS) / _DIGITS

    charged = events(1.0)
    if not charged:  # Nothing is paid: every method is refused, or free.
        return _plan_at(spec, base, terms, 1.0)
    key = {"scale of": charged, "at": [terms.epsilon, terms.delta]}
    return _plan_at(spec, base, terms, float(remembered(key, find)))


def price_undeclared(spec: PrivateDatasetSpec, plan: DatasetPlan) -> tuple[PlannedMethod, ...]:
    """Prices every registered method that the file does not name, with its default settings.

    Each is given all that shared histograms leave of the budget: what the method could do if
    it were the only one.
    """
    declared = {planned.method.name for planned in plan.methods}
    clusters = 0.0 if plan.histogram is None else plan.histogram.share
    left = 1.0 - clusters - _topics_share(spec, plan.terms)
    worth = _worth(plan.terms, left / spec.budget.rounds)
    return tuple(
        _plan_method(MethodSpec(method=name), plan.terms, left, worth)
        for name in REGISTRY
        if name not in declared
    )


def _plan_at(
    spec: PrivateDatasetSpec, base: PublicDataSpec | None, terms: CohortTerms, scale: float
) -> DatasetPlan:
    """Plans one round with every share multiplied by `scale`."""
    scale /= spec.budget.rounds
    shares = _shares(spec, terms)
    try:
        of_secrets, overclaimed = _secret_shares(spec, terms), None
    except ValueError as error:  # Methods that claim too much together are refused together.
        of_secrets, overclaimed = {}, str(error)
    matched = {entry.key: shares[entry.key] for entry in spec.methods}
    for entry in spec.methods:  # What is ex-post is matched to the largest share in quantity.
        if get_method(entry.method).guarantee is not GuaranteeType.DP:
            matched[entry.key] = matched[entry.key] or max(shares.values())
    methods = [
        _plan_method(
            entry,
            replace(terms, secret_share=of_secrets.get(entry.key)),
            shares[entry.key],
            _worth(terms, matched[entry.key] * scale),
            overclaimed,
        )
        for entry in spec.methods
    ]
    return DatasetPlan(
        spec=spec,
        base=base,
        terms=terms,
        budget=budget_terms(spec),
        histogram=None
        if spec.cluster_histogram is None
        else _plan_histogram(spec.cluster_histogram, terms, scale),
        methods=_with_inputs(methods, has_topics=spec.topic_histogram is not None),
        topics=_plan_topics(spec, terms),
    )


def _with_inputs(methods: list[PlannedMethod], *, has_topics: bool) -> tuple[PlannedMethod, ...]:
    """Refuses the methods whose inputs are not there."""
    known = {planned.folder: planned for planned in methods}

    def plan(planned: PlannedMethod) -> MethodPlan:
        refusal = refusal_for_inputs(planned, known, has_topics=has_topics)
        if refusal is None or planned.plan.refusal is not None:
            return planned.plan
        return refused(planned.method, refusal)

    return tuple(replace(planned, plan=plan(planned)) for planned in methods)


def _shares(spec: PrivateDatasetSpec, terms: CohortTerms) -> dict[str, float]:
    """Share of each method by folder: declared, or an equal part of what the others leave."""
    open_keys = [
        entry.key for entry in spec.methods if entry.budget_share is None and _spends(entry, terms)
    ]
    left = max(0.0, 1.0 - spec.budget_shares - _topics_share(spec, terms))
    return {
        entry.key: left / len(open_keys) if entry.key in open_keys else entry.budget_share or 0.0
        for entry in spec.methods
    }


def _secret_shares(spec: PrivateDatasetSpec, terms: CohortTerms) -> dict[str, float]:
    """Share of the secrets' bound, in one round, of each method that protects them."""
    secret = terms.secret
    claims = {
        entry.key: getattr(_bound(entry, terms).config, "secret_share", None)
        for entry in spec.methods
        if get_method(entry.method).guarantee is GuaranteeType.SECRET
    }
    if secret is None or not claims:
        return {}
    shared = spec.cluster_histogram is not None or spec.topic_histogram is not None
    dp = shared or any(_spends(entry, terms) for entry in spec.methods)
    return divided_secret_shares(
        claims,
        secret,
        rounds=spec.budget.rounds,
        dp_mu=gaussian_mu(spec.budget.epsilon, spec.budget.delta) if dp else 0.0,
    )


def _bound(entry: MethodSpec, terms: CohortTerms) -> Method[Any]:
    return bound_method(entry.method, entry.settings, terms)


def _spends(entry: MethodSpec, terms: CohortTerms) -> bool:
    method = _bound(entry, terms)
    return method.guarantee is GuaranteeType.DP and spends(method)


def _topics_share(spec: PrivateDatasetSpec, terms: CohortTerms) -> float:
    """Share of ρ that the topic histogram takes in all rounds: its noise is declared, not sized."""
    planned = _plan_topics(spec, terms)
    return 0.0 if planned is None else planned.share * spec.budget.rounds


def _plan_topics(spec: PrivateDatasetSpec, terms: CohortTerms) -> Planned | None:
    """Prices the declared noise; independent of every share."""
    if spec.topic_histogram is None:
        return None
    method = TopicHistogramRelease(spec.topic_histogram, terms)
    plan = method.plan()
    (event,) = plan.charges.values()
    share = float(event.rho) / zcdp_rho(terms.epsilon, terms.delta)
    return Planned(folder=SHARED, method=method, plan=plan, share=share)


def _worth(terms: CohortTerms, share: float) -> float:
    """ε of a release that takes `share` of the cohort's ρ, alone at the cohort's δ."""
    if share <= 0:
        return 0.0
    return zcdp_epsilon(share * _BELOW * zcdp_rho(terms.epsilon, terms.delta), terms.delta)


def _plan_histogram(declared: HistogramSpec, terms: CohortTerms, share_scale: float) -> Planned:
    """Calibrates the two equal histograms of rebalancing to the declared share of ρ."""
    share = declared.budget_share * share_scale
    method = ClusterHistogramRelease(declared, terms)
    return Planned(
        folder=SHARED,
        method=method,
        plan=method.plan(share * _BELOW * zcdp_rho(terms.epsilon, terms.delta)),
        share=declared.budget_share,
        target_epsilon=_worth(terms, share),
    )


def _plan_method(
    entry: MethodSpec,
    terms: CohortTerms,
    share: float,
    target_epsilon: float,
    overclaimed: str | None = None,
) -> PlannedMethod:
    method = _bound(entry, terms)
    if overclaimed is not None and method.guarantee is GuaranteeType.SECRET:
        plan = refused(method, overclaimed)
    else:
        plan = _readable(priced(method, target_epsilon))
    return PlannedMethod(
        folder=entry.key,
        spec=entry,
        method=method,
        share=share,
        target_epsilon=target_epsilon,
        plan=plan,
    )


def _readable(plan: MethodPlan) -> MethodPlan:
    """Refuses a plan whose text would be mostly tail."""
    if plan.tail is None or plan.tail.refusal is None:
        return plan
    unpaid = tuple(replace(stage, mechanism=None) for stage in plan.stages)
    return replace(
        plan, stages=unpaid, rows_estimate=0, tokens_per_batch=None, refusal=plan.tail.refusal
    )


def reference_settings(plan: DatasetPlan) -> Any:
    """The references are sampled with the settings of the first method that decodes privately.

    Where none does, they end where the longest rows of the methods do: longer ones would not be
    compared with rows alike, and take as much longer to write.
    """
    if plan.predictions:
        return plan.predictions[0].method.config
    of_rows = (each.writing.row_tokens for each in plan.corpora if each.writing is not None)
    longest = max((length for length in of_rows if length is not None), default=None)
    settings = MeanUniformConfig()
    if longest is None:
        return settings
    least = min(longest, settings.min_tokens_for_new_document)
    return MeanUniformConfig(max_document_tokens=longest, min_tokens_for_new_document=least)


def examples_shown(plan: DatasetPlan) -> int:
    """Records in a prompt of the ceiling: as many as the most examples that a method shows."""
    steps = [step for each in plan.methods for step in each.steps]
    return max((step.examples_in_prompt for step in steps), default=1)


ROUND_DOWN = 1.0 - 1e-6
"""Keeps releases that compose exactly from overshooting by rounding."""


def divided_secret_shares(
    claims: Mapping[str, float | None], secret: SecretTerms, *, rounds: int, dp_mu: float
) -> dict[str, float]:
    """Share of the secrets' bound that each method which protects secrets may use in one round.

    Args:
        claims: Declared share of each such method, in (0, 1]; None for an equal part of the rest.
        secret: What the cohort promises to secrets, as the ledger checks it.
        rounds: Times the whole plan is to be released.
        dp_mu: μ of all DP releases of all rounds together, as if they were Gaussian; 0 for none.
            A secret's neighbours are m records apart: they move by m μ (group privacy).

    Returns:
        By name; 1.0 for one method that is alone, in one round. 0 where nothing is left.

    Raises:
        ValueError: Declared shares are more than the whole; one line.
    """
    declared = sum(share for share in claims.values() if share is not None)
    if declared > 1.0 + 1e-9:
        raise ValueError(
            f"Expected secret_share with a sum of at most 1, got {declared:g}. Lower one, or "
            "leave them out: the rest is then divided evenly."
        )
    moved = secret.occurrences * dp_mu
    of_dp = max((moved / _mu(*bound)) ** 2 for bound in secret.bounds)
    left = max(0.0, 1.0 - declared - of_dp)
    unclaimed = sum(share is None for share in claims.values())
    alone = len(claims) == rounds == 1 and dp_mu == 0
    margin = 1.0 if alone else ROUND_DOWN
    return {
        name: margin * (left / unclaimed if share is None else share) / rounds
        for name, share in claims.items()
    }


def _mu(prior: float, posterior: float) -> float:
    """Computes the μ at which a Gaussian release tells a secret of prior p with posterior r.

    As `privacy.secret_protection.gaussian_budget`, but for its last digits and without SciPy, which
    need not be loaded to open a dataset file.
    """
    return NormalDist().inv_cdf(posterior) - NormalDist().inv_cdf(prior)


SLACK = 0.002
"""Share of the budget that may stay unspent; whole tokens cost more than this anyway."""

_FIRST_GUESS = 1.1
"""What optimal composition gains over zCDP at the usual budgets."""

_STEPS = 8
_DIGITS = 10_000
_LARGEST = 1.6
"""More than optimal composition can gain: a plan whose methods refuse is not blown up to fill."""


def largest_scale(fixed_share: float) -> float:
    """Bounds the factor: shares that it moves gain all that the whole budget may gain.

    Args:
        fixed_share: Share of ρ that no factor moves: noise that the dataset file declares.

    Returns:
        1.6 where every share can be moved; more where a part of the budget stands still.
    """
    if not 0 <= fixed_share < 1:
        return _LARGEST  # Nothing is left to be moved.
    return 1 + (_LARGEST - 1) / (1 - fixed_share)


def _search(cost: Callable[[float], float], epsilon: float, largest: float = _LARGEST) -> float:
    """Finds the root of log cost by secant steps inside a bracket that they shrink."""
    low, high = 0.0, largest
    aim = math.log(epsilon * (1 - SLACK / 2))
    factor, points = _FIRST_GUESS, [(math.log(1e-9), -math.inf)]
    for _ in range(_STEPS):
        spent = cost(factor)
        low, high = (factor, high) if spent <= epsilon else (low, factor)
        if low == high or epsilon * (1 - SLACK) <= spent <= epsilon:
            break
        points.append((math.log(factor), math.log(max(spent, 1e-300))))
        guess = math.exp(_secant(points, aim))
        if guess >= largest == high:
            factor = largest  # Nothing has cost too much yet: the bound itself is tried.
        else:
            factor = guess if low < guess < high else (low + high) / 2
    return low or _below(cost, epsilon, high)


def _secant(points: list[tuple[float, float]], aim: float) -> float:
    """Where the line through the last two points meets `aim`; at first, slope 0.6 is assumed."""
    (before, earlier), (now, value) = points[-2:]
    slope = (value - earlier) / (now - before) if math.isfinite(earlier) and now != before else 0.6
    return now + (aim - value) / (slope if 0.1 < slope < 2 else 0.6)


def _below(cost: Callable[[float], float], epsilon: float, high: float) -> float:
    """Halves until the plan fits: a plan that never fits keeps refusing in the ledger."""
    while high > 1e-6:
        high /= 2
        if cost(high) <= epsilon:
            return high
    return high
