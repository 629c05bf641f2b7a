import json
import math
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from dpsynth_assets.methods.base import priced
from dpsynth_assets.methods.evolution.aug_pe import AugPe
from dpsynth_assets.methods.evolution.method import STAGE
from dpsynth_assets.methods.evolution.population import random_population
from dpsynth_assets.methods.evolution.votes import PrivateVotes
from dpsynth_assets.privacy.accounting import epsilon_of
from dpsynth_assets.privacy.errors import UnaccountedReleaseError
from dpsynth_assets.privacy.events import flatten
from dpsynth_assets.privacy.gaussian_dp import gaussian_epsilon
from dpsynth_assets.privacy.guarantees import NeighboringRelation, PrivacyUnit
from dpsynth_assets_tests.checkpoint_folders import CheckpointFolders
from dpsynth_assets_tests.methods.evolution.conftest import (
    WordEmbedder,
    make_config,
    make_private,
    make_public,
    make_terms,
)


def silent(share, message):
    del share, message


def method_of(config=None, terms=None):
    return AugPe(config or make_config(), terms or make_terms())


def plan_of(config=None, terms=None, epsilon=2.0):
    return priced(method_of(config, terms), epsilon)


def votes_of(plan, private):
    return PrivateVotes(plan.stage(STAGE).mechanism, make_terms().labels, private)


def released_by(folder, config=None, terms=None, private=None, epsilon=2.0, public=None, **options):
    return (
        plan_of(config, terms, epsilon)
        .stage(STAGE)
        .release(
            private or make_private(),
            public or make_public(),
            CheckpointFolders(folder, options.get("dies_at")),
            options.get("say", silent),
        )
    )


@pytest.mark.parametrize("relation", NeighboringRelation)
@pytest.mark.parametrize("accountant", ["tight", "zcdp"])
def test_all_rounds_together_cost_the_whole_budget_and_no_more(relation, accountant):
    unit = PrivacyUnit(column="customer", max_records=3)
    terms = make_terms(relation=relation, accountant=accountant, unit=unit)
    plan = plan_of(make_config(), terms, epsilon=1.5)
    assert plan.epsilon <= 1.5
    # Whole votes: the cost wavers a little.
    assert plan.epsilon == pytest.approx(1.5, rel=1e-4 if accountant == "tight" else 1e-9)
    assert epsilon_of([plan.event], terms.delta, accountant) == plan.epsilon


def test_noise_is_that_of_one_gaussian_release_of_all_rounds():
    terms, plan = make_terms(), plan_of(make_config(iterations=7), epsilon=1.0)
    mu = math.sqrt(7) / plan.parameters["noise_std"]
    assert gaussian_epsilon(mu, terms.delta) == pytest.approx(1.0, rel=1e-4)
    assert len(flatten(plan.charges[STAGE])) == 7
    user = make_terms(unit=PrivacyUnit(column="customer", max_records=4))
    more = plan_of(make_config(iterations=7), user, epsilon=1.0)
    assert more.parameters["noise_std"] == pytest.approx(4 * plan.parameters["noise_std"], rel=1e-4)


def test_there_is_no_run_without_noise():
    # Nine published scripts default to noise = 0, and nothing warns.
    assert "Expected a budget_share" in plan_of(epsilon=0.0).refusal
    plan = plan_of(epsilon=1e6)
    assert plan.parameters["noise_std"] == 1.0
    with pytest.raises(ValueError, match="noise"):
        make_config(noise=0)


def test_a_population_needs_a_place_for_every_label():
    assert "population >= 2" in plan_of(make_config(population=1)).refusal


def test_the_population_is_released_with_noisy_votes_and_its_price(tmp_path, api):
    release = released_by(tmp_path)
    assert release.cost.event == plan_of().charges[STAGE]
    assert [path.name for path in release.value.files.iterdir()] == ["generations.parquet"]
    generations = pl.read_parquet(release.value.files / "generations.parquet")
    assert generations["votes"].to_list() == [int(votes) for votes in generations["votes"]]
    assert release.value.internal == {}


def test_no_exact_count_reaches_anything_that_is_released(tmp_path, api):
    # A published log writes the histogram without noise beside the noisy one.
    told, exact = [], []
    count = PrivateVotes.__call__

    def watched(self, rounds, population, embeddings):
        votes = count(self, rounds, population, embeddings)
        exact.append(np.asarray(votes))
        return votes

    private = make_private((40, 20))
    release = released_by(
        tmp_path, private=private, epsilon=0.05, say=lambda *said: told.append(said)
    )
    words = json.dumps([release.value.facts, told]) + repr(private)
    for text in private.records["text"]:
        assert text not in words
    generations = pl.read_parquet(release.value.files / "generations.parquet")
    totals = generations.group_by("iteration").agg(pl.col("votes").sum())["votes"].to_list()
    assert 60.0 not in totals  # 60 records vote; σ is 100 votes on each of 18 candidates
    assert not {40, 20, 60} & {v for v in release.value.facts.values() if isinstance(v, int)}


def test_sizes_of_labels_never_follow_true_counts(tmp_path, api):
    release = released_by(tmp_path, private=make_private((55, 5)), epsilon=50.0)
    generations = pl.read_parquet(release.value.files / "generations.parquet")
    assert np.bincount(generations["label"], generations["survived"]).tolist() == [9, 9]


def test_records_vote_within_their_label_for_what_they_resemble(monkeypatch):
    """Those of undeclared labels and nulled ones, such as the first, give no vote."""
    monkeypatch.setattr(
        "dpsynth_assets.privacy.histogram.discrete_gaussian", lambda counts, scale: counts
    )
    private = make_private((40, 20, 7), ("x", "y", "undeclared"))
    nulled = private.records.with_columns(text=pl.Series([" ", *private.records["text"][1:]]))
    votes = votes_of(plan_of(), replace(private, records=nulled))
    texts = ("to the bakery", "to the harbour", "to the harbour", "to the bakery")
    population = random_population(texts, np.array([0, 0, 1, 1]))
    found = votes(0, population, WordEmbedder().embed(texts))
    assert found.tolist() == [20, 19, 10, 10]


def test_rounds_are_released_in_order_and_never_twice():
    population = random_population(("a", "b"), np.array([0, 1]))
    embeddings = WordEmbedder().embed(population["text"].to_list())
    votes = votes_of(plan_of(), make_private())
    votes(1, population, embeddings)  # a resumed run: one round is stored
    with pytest.raises(UnaccountedReleaseError, match="round after"):
        votes(1, population, embeddings)
    votes(2, population, embeddings)
    with pytest.raises(UnaccountedReleaseError):
        votes(3, population, embeddings)


def test_rounds_paid_for_under_one_plan_are_not_passed_off_as_anothers(tmp_path, api):
    with pytest.raises(KeyboardInterrupt):
        released_by(tmp_path, epsilon=8.0, dies_at=5)
    for changed in (
        {"epsilon": 0.5},
        {"config": make_config(iterations=4), "epsilon": 8.0},
        {"config": make_config(population=8), "epsilon": 8.0},
    ):
        with pytest.raises(UnaccountedReleaseError, match="checkpoint of this plan"):
            released_by(tmp_path, **changed)


def test_the_noise_that_is_written_down_is_the_noise_of_the_mechanisms():
    plan = plan_of()
    assert plan.stage(STAGE).mechanism.noise_std == plan.parameters["noise_std"]
    assert plan.stage(STAGE).mechanism.open(2).remaining == 1


def test_records_without_embeddings_are_refused_without_a_number(tmp_path, api):
    private = replace(make_private(), embeddings=np.zeros((3, 8), np.float32))
    with pytest.raises(ValueError, match="one embedding") as refusal:
        released_by(tmp_path, private=private)
    assert not any(character.isdigit() for character in str(refusal.value))
