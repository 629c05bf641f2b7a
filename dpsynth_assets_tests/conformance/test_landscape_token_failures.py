"""Failures of published token-by-token generators, kept from ever being ours.

Each test states the law, checks that ours keeps it, and shows that the published way breaks it.
"""

from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings, strategies as st

from dpsynth_assets.attacks.reconstruction import CopyingModel
from dpsynth_assets.methods.base import CohortTerms
from dpsynth_assets.methods.inputs import PrivateInputs, PublicInputs
from dpsynth_assets.methods.private_prediction.config import MeanUniformConfig
from dpsynth_assets.methods.private_prediction.mean import MeanUniform
from dpsynth_assets.privacy.batch_terms import BatchTerms
from dpsynth_assets.privacy.difference_clipping import DifferenceTokenMechanism
from dpsynth_assets.privacy.guarantees import NeighboringRelation, PrivacyUnit
from dpsynth_assets.privacy.sparse_vector import PublicTokenTest
from dpsynth_assets.privacy.token_selection import MeanTokenMechanism
from dpsynth_assets_tests.privacy.oracles import distance_oracle

# The distance of the public-token test, taken on the softmax of the mean of clipped logits and
# charged as if one record moved it by 1/s.

VOCABULARY = 16


def record(generator):
    row = np.full(VOCABULARY, -60.0)
    row[generator.random(VOCABULARY) < generator.random()] = 60.0
    return row if generator.random() < 0.5 else generator.normal(0, 5, VOCABULARY)


def neighbours(generator, size):
    """A batch of ordinary or adversarial rows, one row more, and a public law."""
    rows = np.array([record(generator) for _ in range(size)]).reshape(-1, VOCABULARY)
    return rows, np.vstack([rows, record(generator)]), generator.normal(0, 3, VOCABULARY)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 40), st.integers(1, 40))
def test_our_distance_never_moves_by_more_than_its_charge(seed, rows_count, size):
    rows, more, public = neighbours(np.random.default_rng(seed), rows_count)
    move = abs(distance_oracle(rows, public, size) - distance_oracle(more, public, size))
    assert move <= 1 / size + 1e-12
    replaced = more.copy()
    replaced[-1] = record(np.random.default_rng(seed + 1))
    move = abs(distance_oracle(replaced, public, size) - distance_oracle(more, public, size))
    assert move <= 2 / size + 1e-12


# Settings read off private data: a length limit of mean + 2 standard deviations of the private
# lengths, a clip bound computed from it, one text for each private record; all of them unpaid.


class EndlessModel(CopyingModel):
    """Writes digits; its documents end at their limit only."""

    end_token_id = CopyingModel.vocabulary_size + 1  # never drawn: every limit is reached


@dataclass(frozen=True)
class Observable:
    """What a reader of the release sees that is no drawn token."""

    event: object
    texts: int
    longest: int
    facts: tuple


def cohort(count, length):
    draw = np.random.default_rng(count)
    texts = ["".join(draw.choice(list("0123456789"), length)) for _ in range(count)]
    names = [f"r{index}" for index in range(count)]
    return PrivateInputs(
        records=pl.DataFrame({"record_id": names, "unit_id": names, "text": texts, "label": ""})
    )


COHORTS = [cohort(0, 1), cohort(3, 1), cohort(60, 4), cohort(9, 90)]
TERMS = CohortTerms(
    cohort="letters",
    relation=NeighboringRelation.ADD_REMOVE,
    unit=PrivacyUnit(),
    epsilon=10.0,
    delta=1e-5,
    accountant="zcdp",
    labels=("",),
    label_texts=("",),
)


def config_of(private, **changes):
    del private  # every setting is a public constant
    fields = {
        "expected_batch_size": 16,
        "clip_bound": 2.0,
        "batches_per_label": 2,
        "max_document_tokens": 9,
        "max_example_tokens": 12,
        "min_tokens_for_new_document": 4,
        "on_exhaustion": "drop",
        "rejection": {"rules": []},  # Which texts a public rule turns down follows drawn tokens.
    }
    return MeanUniformConfig(**(fields | changes))


def observe(private, config):
    public = PublicInputs(language_model=EndlessModel(), salt="salt")
    method = MeanUniform(config, TERMS)
    plan = method.plan(3.0)
    assert plan.refusal is None
    (stage,) = plan.stages
    release = stage.release(private, public, None, lambda share, message: None)
    facts = tuple(sorted(release.value.facts.items()))
    lengths = release.value.rows["n_tokens"]
    return Observable(release.cost.event, len(lengths), int(lengths.max()), facts)


def test_nothing_but_drawn_tokens_depends_on_private_lengths_or_numbers():
    seen = {repr(observe(private, config_of(private))) for private in COHORTS}
    assert len(seen) == 1


def lengths_of(private):
    return private.records["text"].str.len_chars().cast(pl.Float64)


PUBLISHED = {
    "length limit": lambda private: {
        "max_document_tokens": int(lengths_of(private).mean() + 2 * lengths_of(private).std())
    },
    "clip bound": lambda private: {"clip_bound": np.sqrt(lengths_of(private).mean()) / 2},
    "number of texts": lambda private: {"batches_per_label": len(private.records)},
}


@pytest.mark.parametrize("setting", PUBLISHED)
def test_settings_read_off_private_data_are_caught(setting):
    seen = {
        repr(observe(private, config_of(private, **PUBLISHED[setting](private))))
        for private in (cohort(3, 6), cohort(9, 11))
    }
    assert len(seen) > 1


def parts():
    batch = BatchTerms(expected_batch_size=4, relation=NeighboringRelation.ADD_REMOVE)
    return SimpleNamespace(
        mean=MeanTokenMechanism(batch=batch, clip_bound=6.0, temperature=1.0),
        difference=DifferenceTokenMechanism(batch=batch, clip_bound=1.0, temperature=1.0, top_k=5),
        test=PublicTokenTest(batch=batch, noise_scale=0.2, threshold=0.5),
    )
