"""Audits of records that share a pass: how far they move one another's logits, states, gradients.

Rounding: a batch holds many times the records that it was meant for. A record goes, every row that
shared a pass with it moves by the whole slack in the worst direction, and the range of the
log-likelihood ratio is computed exactly.

States and gradients: kernels that round a row by its place are not on every machine. Stand-ins here
do so everywhere.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np

from dpsynth_assets.attacks.audits.audit import ADD_REMOVE, Audit, Bug, Finding
from dpsynth_assets.attacks.audits.gradients import one_step
from dpsynth_assets.attacks.audits.records import moved
from dpsynth_assets.attacks.audits.token_draws import extreme_row, mean_scores
from dpsynth_assets.attacks.logit_moves import NAME
from dpsynth_assets.models.decoding.protocol import StateReading
from dpsynth_assets.models.engines.protocol import Provenance
from dpsynth_assets.privacy.batch_terms import BatchTerms, pass_rows, row_key
from dpsynth_assets.privacy.per_example import (
    GRADIENT_SLACK,
    LossOfPart,
    PerExampleGradients,
    Products,
)
from dpsynth_assets.privacy.per_example.uses import Factors
from dpsynth_assets.privacy.token_selection import MeanTokenMechanism

if TYPE_CHECKING:
    import torch

    from dpsynth_assets.attacks.logit_moves import LogitMoves, OpenRows


# Audit of the slack of logits: how far the other rows of a pass move a row, and what is declared.
#
# Without a cohort it runs on a small model with random weights, on this machine's kernels. `dpsynth
# audit run COHORT` measures the cohort's own model, in what decodes it, in passes of its methods.

FLOAT32_SLACK = 3e-5
"""What private prediction charges by default."""
PLANTED = 1e-3
"""Move of a planted logit for each row of its pass."""

Measure = Callable[..., "LogitMoves"]
"""`measured_moves` of one decoder, which takes `disturbed` as well."""


def slack_audit(measure: Measure, declared: float, *, name: str = NAME) -> Audit:
    """Makes the audit of one decoder.

    Args:
        measure: Measures it.
        declared: The slack that plans charge (natural-log units).
        name: Of the result.
    """

    def finding(found: "LogitMoves") -> Finding:
        return Finding(claimed=declared, observed=found.by, note=found.over, measured=found.facts)

    made = Audit.named(
        NAME,
        lambda: finding(measure()),
        {Bug.FOLLOWS_COMPANY: lambda: finding(measure(disturbed=_following))},
    )
    return replace(made, name=name)


@dataclass(frozen=True)
class _Following:
    """Planted: contexts whose first logit grows with the rows of the pass."""

    contexts: Any

    def next_logits(self, tokens: "torch.Tensor", generated: "torch.Tensor") -> "torch.Tensor":
        logits = self.contexts.next_logits(tokens, generated).clone()
        logits[:, 0] += PLANTED * len(logits)
        return logits


def _following(opened: "OpenRows") -> "OpenRows":
    return lambda prompts: _Following(opened(prompts))  # type: ignore[return-value]


def _small_model(**arguments: Any) -> "LogitMoves":
    from dpsynth_assets.attacks.logit_moves import PassShape, measured_moves
    from dpsynth_assets.models.transformers_decoder.decoder import TransformersDecoder

    language_model = SimpleNamespace(encode=lambda text: list(text.encode()))
    small = PassShape(rows=24, columns=48)
    return measured_moves(TransformersDecoder(random_llama()), language_model, small, **arguments)


@cache
def random_llama(tokens: int = 256) -> Any:
    """A model of two layers with random weights."""
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    config = LlamaConfig(
        vocab_size=tokens, hidden_size=64, intermediate_size=176, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
        initializer_range=0.1,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(config).eval()


ROWS, FEW_TOKENS, LOGIT_SLACK = 600, 8, 0.05
BATCH = BatchTerms(
    expected_batch_size=8, relation=ADD_REMOVE, logit_slack=LOGIT_SLACK, batches_per_pass=2
)
RECORDS_TRIED = 40

Cut = Callable[[Sequence[bytes], int], list[np.ndarray]]
"""Keys of rows and P to the rows of each pass."""


def _mates(cut: Cut, names: Sequence[int]) -> dict[int, frozenset[int]]:
    """Finds for each named row the rows of its pass."""
    room = BATCH.rows_per_pass
    passes = [
        frozenset(names[row] for row in rows) for rows in cut([row_key(n) for n in names], room)
    ]
    return {name: members for members in passes for name in members}


def _moved_rows(cut: Cut) -> int:
    """Counts the rows whose company changes when a record goes, at most over some records."""
    names = list(range(ROWS))
    before, most = _mates(cut, names), 0
    for gone in names[:RECORDS_TRIED]:
        after = _mates(cut, [name for name in names if name != gone])
        most = max(most, sum(before[name] != mates for name, mates in after.items()))
    return most


def _range_in_passes(cut: Cut) -> Finding:
    mechanism = MeanTokenMechanism(batch=BATCH, clip_bound=1.0, temperature=1.0)
    others = np.zeros((ROWS - 1, FEW_TOKENS))
    moved = others.copy()
    moved[: _moved_rows(cut)] = np.where(np.arange(FEW_TOKENS) == 1, LOGIT_SLACK, -LOGIT_SLACK)
    with_record = np.vstack([moved, extreme_row([1], FEW_TOKENS)])
    ratio = mean_scores(mechanism, with_record) - mean_scores(mechanism, others)
    return Finding(claimed=mechanism.eta, observed=float(np.ptp(ratio)))


def _in_one_pass(keys: Sequence[bytes], _most_rows: int) -> list[np.ndarray]:
    """Planted: a pass holds all rows of its batches."""
    return [np.arange(len(keys))]


TEXTS, WIDTH, VOCABULARY, PADDED = 12, 8, 11, 1024
MOST, SLACK = 40, 1 / 400
L2_BOUND = 0.25
COMPANY = one_step(l2_bound=L2_BOUND, most_in_company=MOST, gradient_slack=SLACK)


@contextmanager
def _rounding_by_place() -> Iterator[Any]:
    """A small model whose layers add a bit more to every other row of a pass."""
    import torch

    def larger(_layer: Any, _inputs: Any, output: Any) -> Any:
        place = torch.arange(len(output))[:, None, None] % 2
        return output * (1.0 + place * 2.0**-22)

    model = random_llama()
    hooks = [each.mlp.register_forward_hook(larger) for each in model.model.layers]
    try:
        yield model
    finally:
        for hook in hooks:
            hook.remove()


def _moved_states(provenance: Provenance) -> Finding:
    """Counts texts whose states are not the same in another company."""
    from dpsynth_assets.models.transformers_decoder.residual_stream import pooled_states

    draw = np.random.default_rng(3)
    texts = [draw.integers(1, VOCABULARY, n).tolist() for n in draw.integers(1, 20, TEXTS)]
    with _rounding_by_place() as model:

        def states(chosen: Sequence[int]) -> np.ndarray:
            found = pooled_states(
                model,
                [texts[index] for index in chosen],
                StateReading((0, 1), provenance=provenance),
                tokens_per_pass=128,
            )
            return np.concatenate([found[0], found[1]], axis=1)

        return Finding(claimed=0.0, observed=float(moved(states, TEXTS).rows))


def _clipped_in_shared_pass(mates: Sequence[int], products: Products) -> np.ndarray:
    """The clipped gradient of one short example beside others of some lengths, in clip bounds.

    The losses of the others do not count, so that the sum is what the example itself adds.
    """
    import torch
    from torch import nn

    draw = np.random.default_rng(5)
    lengths = [6, *mates]
    rows = np.zeros((len(lengths), max(lengths), WIDTH), dtype=np.float32)
    for row, length in zip(rows, lengths, strict=True):
        row[:length] = draw.standard_normal((length, WIDTH))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        model = nn.Sequential(nn.Linear(WIDTH, 64), nn.Tanh(), nn.Linear(64, WIDTH))

    def losses(model: Any) -> Any:
        only = torch.zeros(len(rows))
        only[0] = 1.0
        real = torch.from_numpy((rows != 0).any(axis=2))
        return (model(torch.from_numpy(rows)).square().sum(dim=2) * real).sum(dim=1) * only

    part = LossOfPart(len(rows), losses)
    sums, _ = PerExampleGradients(model, products).private_clipped_sums([part], L2_BOUND)
    return np.concatenate([each.flatten().numpy() for each in sums]) / L2_BOUND


def _moved_gradient() -> Finding:
    """The largest distance between the clipped gradients of one example in two companies."""
    companies: list[list[int]] = [[], [5], [40] * 3, [PADDED], [PADDED] * 7]
    largest = 0.0
    for products in Products:
        found = [_clipped_in_shared_pass(mates, products) for mates in companies]
        largest = max(largest, *(float(np.linalg.norm(one - found[0])) for one in found[1:]))
    return Finding(claimed=GRADIENT_SLACK, observed=largest)


@contextmanager
def _terms_of_the_longest() -> Iterator[None]:
    """Planted: norms make up for rounding over as many tokens as others pad an example to."""
    add_sizes = Factors.add_sizes

    def padded(self: Factors, *norms: Any) -> None:
        add_sizes(self, *(each.clamp(min=1e-30) for each in norms))

    with mock.patch.object(Factors, "add_sizes", padded):
        yield


def _padded_terms() -> Finding:
    with _terms_of_the_longest():
        return _moved_gradient()


def _moved_sum(bound: float) -> Finding:
    """Measures how a record moves a sum whose others it moves by the whole slack, its own way."""
    import torch
    from torch import nn

    def total(records: int) -> Any:
        rows = torch.zeros(records, 1, MOST)
        rows[:, 0, : MOST - 1] = torch.eye(records, MOST - 1)
        if records == MOST:
            rows[:, 0, -1] = SLACK
            rows[-1, 0, -1] = 1.0
        part = LossOfPart(records, lambda model: model(rows)[:, 0, 0])
        model = nn.Linear(MOST, 1, bias=False)
        (found,), _ = PerExampleGradients(model, Products.FLOAT64).private_clipped_sums(
            [part], bound
        )
        return found

    return Finding(claimed=L2_BOUND, observed=float((total(MOST) - total(MOST - 1)).norm()))


AUDITS = (
    Audit.named(
        "rows-of-a-pass",
        lambda: _range_in_passes(pass_rows),
        {Bug.UNBOUNDED_PASS: lambda: _range_in_passes(_in_one_pass)},
    ),
    Audit.named(
        "record-states",
        lambda: _moved_states(Provenance.PRIVATE),
        {Bug.SHARED_STATES: lambda: _moved_states(Provenance.PUBLIC)},
    ),
    Audit.named("gradients-in-company", _moved_gradient, {Bug.TERMS_OF_THE_LONGEST: _padded_terms}),
    Audit.named(
        "sum-of-gradients-in-company",
        lambda: _moved_sum(COMPANY.record_bound),
        {Bug.SHARED_PASSES_NOT_CHARGED: lambda: _moved_sum(L2_BOUND)},
    ),
    slack_audit(_small_model, FLOAT32_SLACK),
)
