"""Audits of the ledger's rules and statements, on a temporary ledger.

A release is drawn once: a retry returns the stored value. The starts of a generator follow the
order that every mechanism asset follows: reserve, draw, store, commit.

No plan is charged whose posterior of a declared secret exceeds r: the ledger is asked for one
Gaussian release under DP, of records of which fifty hold one secret. The best attack on it is known
in closed form, regardless of what the ledger thinks of it.

The mechanisms may all be right and a reader still be told too little: by a digit rounded the wrong
way, by the δ of one rule where two were in force, or by a reading that later releases outgrow.
"""

import hashlib
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

from dpsynth_assets.attacks.audits.audit import ADD_REMOVE, Audit, Bug, Finding
from dpsynth_assets.attacks.audits.gradients import one_step, private_gradient
from dpsynth_assets.attacks.audits.sums import release_vector_mean
from dpsynth_assets.attacks.audits.token_draws import MEAN
from dpsynth_assets.privacy.batch_terms import BatchTerms
from dpsynth_assets.privacy.directed_rounding import declared, rounded_up
from dpsynth_assets.privacy.errors import BudgetExceededError
from dpsynth_assets.privacy.events import Event, GaussianEvent
from dpsynth_assets.privacy.guarantees import GuaranteeType, PrivacyUnit
from dpsynth_assets.privacy.histogram import NoiseKind, NoisyHistogram
from dpsynth_assets.privacy.ledger import (
    BudgetTerms,
    CohortSpend,
    Ledger,
    PlannedRelease,
    ReleaseRequest,
    SecretTerms,
)
from dpsynth_assets.privacy.poisson_sampling import poisson_sample
from dpsynth_assets.privacy.secret_clustering import SecretClustering
from dpsynth_assets.privacy.secret_noise import SecretSampling
from dpsynth_assets.privacy.sparse_vector import PublicTokenTest
from dpsynth_assets.privacy.token_selection import NextLogits, PrivateTokenMeter

STARTS = 4
BINS = 64
SCALE = 10.0
RELATION = ADD_REMOVE
DELTA = 0.01
COUNTS = NoisyHistogram(noise="laplace", scale=SCALE, relation=RELATION).event()

PRIOR, POSTERIOR, HOLDERS = 1e-4, 1e-3, 50
SUM_NOISE = 1.5
"""Standard deviation of a release, in moves of one record: ε is about 3."""

SECRET = SecretTerms(prior=PRIOR, posterior=POSTERIOR, occurrences=HOLDERS)

FORMS = ("g", ".3g", ".4g", ".2f", ".4f", ".1e")
AWKWARD = (3.3232799769432324, 7.103492595599145e-2, 0.0499999999, 1.00000001e-6, 0.35020067)
"""Bounds that lie a little above a number of few digits."""

EVENT = GaussianEvent(noise_multiplier=3.0)
BUDGET = {"epsilon": 4.0, "delta": DELTA}

Start = Callable[[Ledger, Path], bytes]
"""One start of a generator: what it gives out."""


@contextmanager
def _ledger() -> Iterator[tuple[Ledger, Path]]:
    """A scratch ledger, and a folder beside it."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        yield Ledger(f"sqlite:///{folder / 'ledger' / 'ledger.sqlite'}"), folder


def _terms(
    accountant: str, *, epsilon: float = 8.0, delta: float = 1e-6, **more: Any
) -> BudgetTerms:
    return BudgetTerms(
        epsilon=epsilon,
        delta=delta,
        accountant=accountant,
        relation=RELATION,
        unit=PrivacyUnit(),
        **more,
    )


def _request(asset: str, event: Event, release: str = "1") -> ReleaseRequest:
    return ReleaseRequest(
        cohort="audit",
        dataset="audit",
        asset=f"audit/{asset}",
        mechanism=asset,
        guarantee=GuaranteeType.DP,
        event=event,
        parameters={},
        code_version="1",
        data_version="1",
        release=release,
    )


def _draw() -> bytes:
    drawn = NoisyHistogram(noise="laplace", scale=SCALE, relation=RELATION).release([0] * BINS)
    return drawn.value.tobytes()


def _reserving_start(ledger: Ledger, folder: Path) -> bytes:
    """Reserves, and reads the stored release where there is one."""
    reservation = ledger.reserve(_request("histogram", COUNTS), _terms("zcdp"))
    if reservation.reused:
        return Path(str(reservation.artifact_uri)).read_bytes()
    value = _draw()
    path = folder / hashlib.sha256(value).hexdigest()
    path.write_bytes(value)
    ledger.commit(reservation, artifact_digest=path.name, artifact_uri=str(path))
    return value


def _renoising_start(ledger: Ledger, _folder: Path) -> bytes:
    """Planted: the un-noised value is kept, and each start adds noise to it."""
    reservation = ledger.reserve(_request("histogram", COUNTS), _terms("zcdp"))
    if not reservation.reused:
        ledger.commit(reservation, artifact_digest="un-noised", artifact_uri="un-noised")
    return _draw()


def _values_a_charge(start: Start) -> Finding:
    """Counts the different values that several starts gave out, against charges in the ledger."""
    with _ledger() as (ledger, folder):
        values = {start(ledger, folder) for _ in range(STARTS)}
        charges = sum(entry.kind == "reserve" for entry in ledger.entries("audit"))
    return Finding(claimed=float(charges), observed=float(len(values)))


def _attained_posterior(secret: SecretTerms | None) -> Finding:
    """Measures how often a secret is named after asking the ledger: at the prior if it refused."""
    from scipy.special import ndtr, ndtri

    request = _request("sum", GaussianEvent(noise_multiplier=SUM_NOISE))
    plan = [PlannedRelease(request.asset, request.event)]
    with _ledger() as (ledger, _):
        try:
            ledger.reserve(request, _terms("tight", secret=secret), plan)
            attained = float(ndtr(HOLDERS / SUM_NOISE + ndtri(PRIOR)))
        except BudgetExceededError:
            attained = PRIOR
    return Finding(claimed=POSTERIOR, observed=attained, note=f"at a prior of {declared(PRIOR)}")


def _shortfall(write: Callable[[float, str], str]) -> Finding:
    """The largest share by which a written bound is below the bound itself."""
    short = max(
        1 - Decimal(write(bound, form)) / Decimal(repr(bound))
        for bound in AWKWARD
        for form in FORMS
    )
    return Finding(claimed=0.0, observed=max(0.0, float(short)))


def _two_rules(stated: Callable[[CohortSpend], float]) -> Finding:
    """Compares the δ stated after a switch of accountants with what two rules of δ each allow.

    Each rule may spend its whole δ. Who stops where the plan told everything, and continues under
    the filter where it did not, meets the one or the other: 1 − (1 − δ)².
    """
    with _ledger() as (ledger, _):
        plan = [PlannedRelease("audit/plan", EVENT)]
        ledger.reserve(_request("plan", EVENT), _terms("tight", **BUDGET), plan)
        ledger.reserve(_request("filter", EVENT), _terms("zcdp", **BUDGET))
        return Finding(claimed=stated(ledger.spend("audit")), observed=1 - (1 - DELTA) ** 2)


def _both(stated: Callable[[CohortSpend], float]) -> Finding:
    """The worse of a filter and of a plan that has several rounds."""
    found = [_still_to_come(stated, accountant) for accountant in ("zcdp", "tight")]
    return max(found, key=lambda each: each.observed - each.claimed)


def _still_to_come(stated: Callable[[CohortSpend], float], accountant: str) -> Finding:
    """Compares the ε stated after one release with that of all that are then admitted.

    A person who sees one release decides on the next, so that any number of them may follow.
    """
    plan, terms = [PlannedRelease("audit/sum", EVENT)], _terms(accountant, **BUDGET)
    with _ledger() as (ledger, _):
        ledger.reserve(_request("sum", EVENT), terms, plan)
        claimed = stated(ledger.spend("audit"))
        for release in range(2, 1000):
            try:
                ledger.reserve(_request("sum", EVENT, str(release)), terms, plan)
            except BudgetExceededError:
                break
        return Finding(claimed=claimed, observed=ledger.spend("audit").epsilon)


# Audit of the noise source: no seed that a reader of the code knows may bring the noise back.
#
# Every seedable generator of the process is seeded alike before each of two runs; noise that comes
# from one of them repeats, and a reader who repeats it can subtract it. Honest runs agree by chance
# with probability below 2^-100.

SEED = 42
SIZE = 128

Draw = Callable[[], np.ndarray]


@contextmanager
def seeded_everywhere(seed: int = SEED) -> Iterator[None]:
    """Seeds Python's, NumPy's and PyTorch's generators; puts their old states back afterwards."""
    import torch

    python_state, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng():
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        torch.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)  # noqa: NPY002


def _histogram(noise: NoiseKind) -> np.ndarray:
    return NoisyHistogram(noise=noise, scale=10.0, relation=ADD_REMOVE).release([0] * SIZE).value


def _tokens() -> np.ndarray:
    import torch

    nobody = torch.empty(0, 1000), torch.empty(0, dtype=torch.int64)
    meter = PrivateTokenMeter(1, SIZE)
    return MEAN.select(NextLogits(*nobody, np.arange(SIZE)), meter)


def _answers() -> np.ndarray:
    """Empty batches at distance 1 of the threshold's 1: each answer is a fair coin."""
    import torch

    batch = BatchTerms(expected_batch_size=1, relation=ADD_REMOVE)
    test = PublicTokenTest(batch=batch, noise_scale=1.0, threshold=1.0)
    opened = test.open(PrivateTokenMeter(1, SIZE))
    nobody = torch.empty(0, dtype=torch.int64)
    public = torch.zeros(SIZE, 2)
    return opened.needs_private_token(NextLogits(public[:0], nobody, np.arange(SIZE), public))


def _vector() -> np.ndarray:
    zeros, settings = np.zeros((1, 1, SIZE)), {"l2_bounds": [1.0], "noise_std": 1.0}
    return release_vector_mean(zeros, records=1, relation=ADD_REMOVE, **settings).value


def _gradient() -> np.ndarray:
    import torch

    mechanism = one_step()
    (batch,) = mechanism.batches(1)
    return private_gradient(mechanism, [torch.zeros(len(batch), SIZE)])[0].numpy()


def _clusters() -> np.ndarray:
    clustering = SecretClustering(
        public_centres=np.eye(SIZE),
        public_counts=np.ones(SIZE),
        l2_bound=1.0,
        sampling=SecretSampling.capped(probability=0.5, max_occurrences=1),
        noise_std=1.0,
    )
    return clustering.release(np.zeros((0, SIZE))).value.counts


REAL: Mapping[str, Draw] = {
    "histogram, laplace": lambda: _histogram("laplace"),
    "histogram, gaussian": lambda: _histogram("gaussian"),
    "softmax_draws, tokens": _tokens,
    "sparse_vector": _answers,
    "vector_mean": _vector,
    "dp_sgd": _gradient,
    "poisson_sampling": lambda: np.isin(np.arange(SIZE), poisson_sample(SIZE, 0.5)),
    "secret_clustering": _clusters,
}
"""A release of every module of the kernel that draws noise, by the module's name."""


def _global_noise() -> np.ndarray:
    import torch

    return torch.randn(SIZE).numpy()


PLANTED: Mapping[str, Draw] = {
    "own generator": lambda: np.random.default_rng(SEED).normal(size=SIZE),
    "global generator": _global_noise,
}
"""Noise from a published constant: 42 seeds a generator of its own, or PyTorch's."""


def _repeats(draws: Mapping[str, Draw]) -> Finding:
    """Counts the releases whose noise two equally seeded runs share."""
    repeated = []
    for name, draw in draws.items():
        runs = []
        for _ in range(2):
            with seeded_everywhere():
                runs.append(draw())
        if np.array_equal(runs[0], runs[1]):
            repeated.append(name)
    return Finding(claimed=0.0, observed=float(len(repeated)), note=", ".join(repeated))


AUDITS = (
    Audit.named(
        "one-draw-a-charge",
        lambda: _values_a_charge(_reserving_start),
        {Bug.RENOISED: lambda: _values_a_charge(_renoising_start)},
    ),
    Audit.named(
        "promise-to-secrets",
        lambda: _attained_posterior(SECRET),
        # A promise that counts only beside methods that protect secrets is none for this plan.
        {Bug.PROMISE_UNCHECKED: lambda: _attained_posterior(None)},
    ),
    Audit.named(
        "written-bounds",
        lambda: _shortfall(rounded_up),
        {Bug.ROUNDED_TO_NEAREST: lambda: _shortfall(format)},
    ),
    Audit.named(
        "switched-delta",
        lambda: _two_rules(lambda spend: spend.delta),
        {Bug.ONE_DELTA: lambda: _two_rules(lambda _: DELTA)},
    ),
    Audit.named(
        "guaranteed-epsilon",
        lambda: _both(lambda spend: spend.guaranteed_epsilon),
        {Bug.ODOMETER: lambda: _both(lambda spend: spend.epsilon)},
    ),
    Audit.named(
        "unseeded-noise",
        lambda: _repeats(REAL),
        {Bug.PUBLIC_SEED: lambda: _repeats(PLANTED)},
    ),
)
