"""All audits, by name and by subject; and those of methods whose rows are free.

CTCL and DP fine-tuning, EPSVec, Aug-PE and SecPE release weights, vectors, votes or clusters once,
and write any number of rows from them. No row tells more than the release does, so the attacker is
given the release: his own records are in it or not (`attacks.membership`). It is made by the
methods' own code, from made-up records and small models with random weights, at small shapes.

Bugs are planted in that code: a function of it is replaced while the attack runs.

Letters: m canaries, T steps or rounds, L layers, d dimensions.
"""

from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from unittest import mock

import numpy as np
import polars as pl

from dpsynth_assets.attacks.audits import MECHANISM_AUDITS, latest_results
from dpsynth_assets.attacks.audits.audit import (
    ADD_REMOVE,
    EVERY_RELEASE,
    Audit,
    Bug,
    Charge,
    Finding,
    claims,
    event_types,
)
from dpsynth_assets.attacks.audits.shared_passes import random_llama
from dpsynth_assets.attacks.membership import CANARIES, DELTA, fair_coins, judge_scores
from dpsynth_assets.datasets.secrets import SecretsSpec
from dpsynth_assets.files.whole import Checkpoint
from dpsynth_assets.methods.base import CohortTerms
from dpsynth_assets.methods.epsvec.config import EpsVecConfig
from dpsynth_assets.methods.epsvec.negatives import Negatives
from dpsynth_assets.methods.epsvec.plan import VectorNoise
from dpsynth_assets.methods.epsvec.states import Scaffold, StateReader
from dpsynth_assets.methods.epsvec.vectors import VectorTask, release_vectors
from dpsynth_assets.methods.evolution import votes
from dpsynth_assets.methods.evolution.population import random_population
from dpsynth_assets.methods.evolution.secret_clusters import ClusterReleases, PublicClusters
from dpsynth_assets.methods.fine_tuning import Ctcl
from dpsynth_assets.methods.fine_tuning.config import CtclConfig
from dpsynth_assets.methods.fine_tuning.private_training import TrainingStart
from dpsynth_assets.methods.inputs import PrivateInputs, PublicInputs, silent
from dpsynth_assets.methods.stages import StageRun
from dpsynth_assets.paths import home
from dpsynth_assets.privacy import dp_sgd, histogram, secret_clustering, vector_mean
from dpsynth_assets.privacy.dp_sgd import DpSgdMechanism
from dpsynth_assets.privacy.guarantees import PrivacyUnit
from dpsynth_assets.privacy.lattice import Lattice
from dpsynth_assets.privacy.ledger import ChargeGraph, LedgerEntry
from dpsynth_assets.privacy.secret_clustering import ClusterStatistics
from dpsynth_assets.workers import Here

if TYPE_CHECKING:
    import torch

LABELS = tuple(f"label {number}" for number in range(CANARIES))
TEXT = "canary"
NO_CHECKPOINT = cast("Checkpoint", None)


def _terms(**declared: Any) -> CohortTerms:
    return CohortTerms(
        cohort="canaries",
        relation=ADD_REMOVE,
        unit=PrivacyUnit(),
        epsilon=1.0,
        delta=DELTA,
        accountant="tight",
        labels=LABELS,
        label_texts=LABELS,
        **declared,
    )


def _records(
    present: np.ndarray, vectors: np.ndarray, *, own_labels: bool = False
) -> PrivateInputs:
    """Those of m canaries that were put in, with their rows of (m, d) embeddings."""
    numbers = np.flatnonzero(present)
    names = [f"canary {number}" for number in numbers]
    labels = [LABELS[number if own_labels else 0] for number in numbers]
    columns = {"record_id": names, "unit_id": names, "text": [TEXT] * len(names), "label": labels}
    return PrivateInputs(records=pl.DataFrame(columns), embeddings=vectors[present])


# Aug-PE: each canary is where one candidate is, and votes for it in every round.

ROUNDS = votes.voting_rounds(_terms(), iterations=3, noise_std=1.0)
DIMENSIONS = 32


def _attack_votes() -> Finding:
    present = fair_coins()
    places = np.random.default_rng(1).standard_normal((CANARIES, DIMENSIONS)).astype(np.float32)
    places /= np.linalg.norm(places, axis=1, keepdims=True)
    population = random_population([TEXT] * CANARIES, np.zeros(CANARIES))
    released = votes.PrivateVotes(ROUNDS, LABELS[:1], _records(present, places))
    rounds = [released(done, population, places) for done in range(ROUNDS.iterations)]
    return judge_scores(present, np.sum(rounds, axis=0), ROUNDS.event())


# SecPE: each canary is where one public centre is, and moves its count and its sum by one.

PUBLIC_COUNT = 4
ANGLES = np.linspace(0.0, 2.0 * np.pi, CANARIES, endpoint=False)
CLUSTERS = PublicClusters(
    centres=np.column_stack([np.cos(ANGLES), np.sin(ANGLES)]),
    counts=np.full(CANARIES, PUBLIC_COUNT),
    labels=np.zeros(CANARIES, dtype=np.int64),
)
CANARY = {"name": "canary", "detector": "column", "column": "id", "max_records": 1}
PROMISE = SecretsSpec.model_validate({"kinds": [{**CANARY, "prior": 0.01, "posterior": 0.1}]})
RELEASES = ClusterReleases(
    record_level=True,
    terms=_terms(secrets=PROMISE),
    noise_std=0.75,
    count_probabilities=(0.0, 1.0),
)


def _attack_clusters() -> Finding:
    present = fair_coins()
    released = RELEASES.release(CLUSTERS, _records(present, CLUSTERS.centres))
    counted = released.counts[0] - PUBLIC_COUNT
    weight = PUBLIC_COUNT + np.maximum(counted, 0.0)  # What the noisy sums were divided by.
    along = (released.centres[0] * CLUSTERS.centres).sum(axis=1) * weight
    return judge_scores(present, counted + along, RELEASES.event())


# EPSVec: each canary is the only record of a label, and far from all that the model writes.

LAYERS, WIDTH, FAR = (0, 1), 64, 1e3
NOISE = VectorNoise(
    noise_multiplier=0.5, sampling_probability=1.0, relation=ADD_REMOVE, max_records_per_unit=1
)


@cache
def _vector_task() -> VectorTask:
    """Differences that are FAR clip bounds long at least, read by the engine that methods use."""
    from dpsynth_assets.models.engines.decoder_engine import DecoderEngine

    model = random_llama()
    tokens = SimpleNamespace(
        begin_token_id=0,
        prompt_ids=lambda *_: [0, 1],
        encode=lambda text: list(text.encode()),
        vocabulary_size=256,
        config=model.config,
        model=model,
        name="random weights",
    )
    engine = DecoderEngine(cast("Any", tokens), "transformers")
    labels = ((),) * CANARIES
    scaffold = Scaffold(label_texts=LABELS, max_tokens=8, codec=tokens, templates=None)
    reader = StateReader(engine=engine, scaffold=scaffold, shots=labels, layers=LAYERS)
    shortest = np.linalg.norm(reader.read(0, [TEXT])[0], axis=1).min()
    negatives = Negatives(
        texts=labels,
        states=(np.zeros((1, len(LAYERS), WIDTH)),) * CANARIES,
        layers=LAYERS,
        clip_bounds=np.full(len(LAYERS), shortest / FAR),
        model=engine.name,
    )
    return VectorTask(
        reopened=None,
        reader=Here(reader),
        shots=labels,
        negatives=negatives,
        noise=NOISE,
        config=EpsVecConfig(),
        terms=_terms(),
        salt="",
    )


def _attack_vectors() -> Finding:
    task, present = _vector_task(), fair_coins()
    private = _records(present, np.zeros((CANARIES, 1)), own_labels=True)
    released = release_vectors(task, private, silent).value
    noise = NOISE.noise_std(layers=len(LAYERS), records=task.records) * np.sqrt(WIDTH)
    means = released.directions * (released.signal_over_noise * noise)[:, :, None]
    own = pl.DataFrame({"record_id": [TEXT], "text": [TEXT]})
    (known,) = task.differences(task.opened(), 0, own)  # The same behind every label.
    known /= np.linalg.norm(known, axis=1, keepdims=True)
    scores = (means * known).sum(axis=(1, 2))
    return judge_scores(present, scores, task.noise.event())


# CTCL and DP fine-tuning: each canary is a token that no other record has.

CLIP_BOUND, STILL = 1e-4, 1e-12
"""A bound below every gradient, and a rate at which all steps meet the same weights."""


@dataclass(frozen=True, kw_only=True)
class _Watched(DpSgdMechanism):
    """The mechanism, whose noisy gradients the attacker sees: weights follow from them."""

    seen: list[Any] = field(default_factory=list)

    def private_gradient_of_losses(self, *arguments: Any) -> "list[torch.Tensor]":
        released = super().private_gradient_of_losses(*arguments)
        self.seen.append(released[0].numpy().astype(np.float64))
        return released


TRAINING = _Watched(
    l2_bound=CLIP_BOUND,
    noise_multiplier=1.0,
    sampling_probability=1.0,
    steps=4,
    expected_batch_size=CANARIES / 2,
    relation=ADD_REMOVE,
    most_in_company=CANARIES,
    gradient_slack=0.0,
)


def _attack_training() -> Finding:
    from dpsynth_assets.models.fine_tuning.sources import CausalLoss, TokenExample

    model, present = deepcopy(random_llama(CANARIES)).requires_grad_(False), fair_coins()
    embeddings = model.get_input_embeddings().weight.requires_grad_(True)
    loss = CausalLoss(pad_token_id=0, start_token_id=0)
    examples = [TokenExample([token], [0]) for token in range(CANARIES)]
    loss(model, examples).sum().backward()
    known = embeddings.grad.numpy() / np.linalg.norm(embeddings.grad, axis=1, keepdims=True)
    embeddings.grad = None
    watched = replace(TRAINING, seen=[])
    method = Ctcl(CtclConfig(learning_rate=STILL, micro_batch_records=CANARIES), _terms())
    run = StageRun(
        stage=replace(method.stages()[0], mechanism=watched),
        private=_records(present, np.zeros((CANARIES, 1))),
        public=PublicInputs(),
        checkpoint=NO_CHECKPOINT,
        progress=silent,
    )
    start = TrainingStart(model=model, loss=loss, name="random weights")
    method.train(run, start, [examples[token] for token in np.flatnonzero(present)])
    scores = (np.sum(watched.seen, axis=0) * known).sum(axis=1)
    return judge_scores(present, scores, TRAINING.event())


def _with(
    attack: Callable[[], Finding], owner: Any, name: str, changed: Callable[[Any], Any]
) -> Callable[[], Finding]:
    """Planted: the attack on code of which one function is replaced."""

    def run() -> Finding:
        with mock.patch.object(owner, name, changed(getattr(owner, name))):
            return attack()

    return run


def _quieter(share: float) -> Callable[[Any], Any]:
    """Planted: noise of a share of its scale."""
    return lambda draw: lambda values, scale: draw(values, scale * share)


def _twice(count: Any) -> Any:
    """planted: what a record adds is added twice."""
    return lambda *arguments, **named: 2 * count(*arguments, **named)


def _audit(
    name: str,
    attack: Callable[[], Finding],
    noise: tuple[Any, str],
    bug: Bug,
    planted: tuple[Any, str, Callable[[Any], Any]],
) -> Audit:
    return Audit.named(
        name,
        attack,
        {
            Bug.NO_NOISE: _with(attack, *noise, _quieter(1e-3)),
            Bug.HALVED_NOISE: _with(attack, *noise, _quieter(0.5)),
            bug: _with(attack, *planted),
        },
    )


def _rounded(_clip: Any) -> Any:
    return lambda lattice, vectors, _bound: np.rint(vectors / lattice.spacing).astype(np.int64)


CANARY_AUDITS = (
    _audit(
        "canaries-in-votes",
        _attack_votes,
        (histogram, "discrete_gaussian"),
        Bug.COUNTED_TWICE,
        (votes, "count_votes", _twice),
    ),
    _audit(
        "canaries-in-clusters",
        _attack_clusters,
        (secret_clustering, "discrete_gaussian"),
        Bug.COUNTED_TWICE,
        (ClusterStatistics, "sampled", _twice),
    ),
    _audit(
        "canaries-in-vectors",
        _attack_vectors,
        (vector_mean, "discrete_gaussian"),
        Bug.UNCLIPPED,
        (Lattice, "clip", _rounded),
    ),
    _audit(
        "canaries-in-training",
        _attack_training,
        (dp_sgd, "gaussian_like"),
        Bug.UNCLIPPED,
        (DpSgdMechanism, "record_bound", lambda _bound: 10.0 * CLIP_BOUND),
    ),
)

_MADE = {audit.name: audit for audit in (*MECHANISM_AUDITS, *CANARY_AUDITS)}
AUDITS: tuple[Audit, ...] = tuple(_MADE[name] for name in claims())
"""Every audit, in the order in which labels print them."""


def find_audit(name: str) -> Audit:
    """Returns the audit of this name.

    Raises:
        ValueError: There is none; the message lists the names.
    """
    if name not in _MADE:
        raise ValueError(f"Expected an audit among {', '.join(claims())}, got {name!r}.")
    return _MADE[name]


def audits_for(charges: Iterable[Charge]) -> tuple[Audit, ...]:
    """Lists the audits that releases rest on: of their events, of their methods, and of all.

    Args:
        charges: Of a ledger or of a plan.
    """
    wanted = {EVERY_RELEASE}.union(*((name, *event_types(event)) for name, event in charges))
    return tuple(audit for audit in AUDITS if wanted & set(audit.events))


def results_for(path: Path, charges: Iterable[Charge]) -> list[dict[str, Any]]:
    """Picks the last results that these releases rest on, as a label prints them.

    Args:
        path: File that `save_results` wrote, or none.
        charges: As `audits_for` takes them.

    Returns:
        One mapping an audit that was run here, with its result, mechanism, claim and measure.
    """
    latest = {result.name: result for result in latest_results(path)}
    return [
        {
            **latest[audit.name].printed(),
            "mechanism": audit.mechanism,
            "claim": audit.claim,
            "measure": audit.measure,
        }
        for audit in audits_for(charges)
        if audit.name in latest
    ]


def results_behind(entries: Sequence[LedgerEntry], reservation: str) -> list[dict[str, Any]]:
    """Picks the last results here that a release, and all it was made from, rest on."""
    behind = ChargeGraph(entries).charges_behind(reservation)
    return results_for(home().audits, [(each.mechanism, each.event) for each in behind])
