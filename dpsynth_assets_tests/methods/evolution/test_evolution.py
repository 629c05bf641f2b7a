import json
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings, strategies as st

from dpsynth_assets.methods.base import priced, room_of
from dpsynth_assets.methods.evolution.evolution import Evolution, begun_with
from dpsynth_assets.methods.evolution.method import STAGE, write_rows
from dpsynth_assets.methods.evolution.population import (
    generation_facts,
    last_survivors,
    random_population,
    read_generations,
    select,
    vote_entropy,
)
from dpsynth_assets.methods.evolution.private_evolution import AugPe
from dpsynth_assets.methods.evolution.votes import PrivateVotes, VotingRecords, nearest_candidates
from dpsynth_assets.methods.inputs import Released, silent
from dpsynth_assets.methods.work import PublicSizes
from dpsynth_assets.orchestration.assets.stage_metadata import rounds_table
from dpsynth_assets.privacy.accounting import epsilon_of
from dpsynth_assets.privacy.errors import UnaccountedReleaseError
from dpsynth_assets.privacy.guarantees import NeighboringRelation, PrivacyUnit
from dpsynth_assets.privacy.histogram import NO_VOTE
from dpsynth_assets.report.plots import votes_by_rank_plot
from dpsynth_assets_tests.checkpoint_folders import CheckpointFolders
from dpsynth_assets_tests.methods.cohorts import WordEmbedder
from dpsynth_assets_tests.methods.evolution.conftest import (
    EMBEDDER,
    WordApi,
    make_config,
    make_private,
    make_public,
    make_terms,
)

IDENTITY = {"event": "T rounds", "settings": {"a": 1}}


class Votes:
    """Votes for `harbour`, and remembers the rounds it was asked for."""

    def __init__(self):
        self.rounds = []

    def __call__(self, rounds, population, embeddings):
        self.rounds.append(rounds)
        assert embeddings.shape == (population.height, EMBEDDER.dimension)
        return np.array([text.split().count("harbour") for text in population["text"]])


def evolve(folder, votes=None, api=None, dies_at=None, say=silent, **changes):
    config = make_config(**changes)
    evolution = Evolution(
        config=config,
        labels=("x", "y"),
        sizes=np.array([4, 2]),
        api=api or WordApi(),
        embedder=EMBEDDER,
        seed=3,
    )
    return evolution.run(
        votes or Votes(), say, identity=IDENTITY, checkpoint=CheckpointFolders(folder, dies_at)
    )


def test_every_generation_is_survivors_and_their_variations(tmp_path):
    api = WordApi()
    state = evolve(tmp_path / "a", api=api)
    assert [len(call[2]) for call in api.calls] == [18, 12, 12]
    for frame in state.generations.partition_by("iteration"):
        assert np.bincount(frame["label"]).tolist() == [12, 6]
        assert np.bincount(frame["label"], frame["survived"]).tolist() == [4, 2]
    second = state.generations.filter(pl.col("iteration") == 2)
    assert second["born"].to_list() == [0] * 6 + [1] * 12
    assert second["parent"].to_list() == [*range(6), *np.repeat(range(6), 2)]
    own = [0] * 4 + [1] * 2  # A variation has the label of its parent.
    assert second["label"].to_list() == [*own, *np.repeat(own, 2)]


def test_released_rows_come_first_and_only_what_is_lacking_is_written():
    rows = {"a": ["a1", "a2"], "b": ["b1"]}
    numbered = lambda lacking: [f"{label} {n}" for n, label in enumerate(lacking)]  # noqa: E731
    texts = begun_with(rows, ["a", "b", "b", "a", "a", "c"], numbered)
    assert texts == ["a1", "b1", "b 0", "a2", "a 1", "c 2"]
    assert begun_with(rows, ["a"], pytest.fail) == ["a1"]


def test_losers_are_forgotten_but_for_the_last_round(tmp_path):
    generations = evolve(tmp_path / "a").generations
    losers = generations.filter(pl.col("survived") == 0)
    assert losers.filter(pl.col("iteration") < 3)["text"].is_null().all()
    assert losers.filter(pl.col("iteration") == 3)["text"].is_not_null().all()


def test_negative_votes_can_be_drawn_and_the_table_has_a_line_a_round(tmp_path):
    votes = Votes()
    generations = evolve(tmp_path / "a", lambda *told: -votes(*told)).generations
    assert votes_by_rank_plot(generations, noise_std=4.0).startswith(b"\x89PNG")
    assert len(rounds_table(generation_facts(generations)).splitlines()) == 5


def test_lookahead_votes_on_the_mean_of_variations(tmp_path):
    api, seen = WordApi(), []

    def vote(rounds, population, embeddings):
        del rounds
        seen.append((population["text"].to_list(), embeddings))
        return np.zeros(population.height)

    evolve(tmp_path / "a", vote, api, lookahead=3, iterations=1)
    texts, embeddings = seen[0]
    looks = [call for call in api.calls if call[0] == "vary"]
    assert [list(call[2]) for call in looks] == [texts] * 3
    assert len({call[1] for call in looks}) == 3
    again = [
        EMBEDDER.embed(WordApi().vary(texts, [""] * len(texts), degree=0.4, seed=call[1]))
        for call in looks
    ]
    assert embeddings == pytest.approx(np.mean(again, axis=0), abs=1e-6)


@pytest.mark.parametrize("dies_at", range(1, 7))
def test_a_run_killed_at_any_step_goes_on_with_what_it_stored(tmp_path, dies_at):
    votes, api = Votes(), WordApi()
    whole = evolve(tmp_path / "whole", votes, api)
    assert votes.rounds == [0, 1, 2]
    first, second = Votes(), Votes()
    with pytest.raises(KeyboardInterrupt):
        evolve(tmp_path / "killed", first, dies_at=dies_at)
    resumed = evolve(tmp_path / "killed", second)
    assert resumed.generations.equals(whole.generations)
    # Saves alternate: candidates, votes, candidates, ... The votes of a killed save are drawn anew.
    stored = (dies_at - 1) // 2
    assert second.rounds == list(range(stored, 3))
    assert first.rounds[:stored] == list(range(stored))


def test_a_finished_run_asks_for_no_further_votes(tmp_path):
    evolve(tmp_path / "a")
    votes, api = Votes(), WordApi()
    evolve(tmp_path / "a", votes, api)
    assert votes.rounds == []
    assert api.calls == []


def test_nothing_about_votes_is_shown_before_they_are_stored(tmp_path):
    def shown(value):
        told = []

        def vote(rounds, population, embeddings):
            del embeddings
            return np.full(population.height, value) * (rounds == 0)

        with pytest.raises(KeyboardInterrupt):
            evolve(tmp_path / f"{value}", vote, dies_at=2, say=lambda *said: told.append(said))
        return told

    assert shown(1) == shown(5)
    told = []
    evolve(tmp_path / "b", say=lambda *said: told.append(said))
    assert [share for share, _ in told] == sorted(share for share, _ in told)


def test_facts_follow_the_rounds(tmp_path):
    facts = generation_facts(evolve(tmp_path / "a").generations)
    assert (facts["iterations"], facts["candidates"], facts["survivors"]) == (3, 18, 6)
    assert facts["survivors_new"][0] == 1.0
    assert len(facts["vote_entropy"]) == len(facts["votes_total"]) == 3


def rows_of(state, sizes, api=None):
    return write_rows(
        last_survivors(state.generations), np.array(sizes), ("x", "y"), api or WordApi(),
        5, silent,
    )  # fmt: skip


def test_rows_are_survivors_by_votes_and_then_their_variations_in_turn(tmp_path):
    state, api = evolve(tmp_path / "a"), WordApi()
    last = last_survivors(state.generations)
    votes = dict(state.generations.select("text", "votes").iter_rows())  # The last round's stay.
    of_x = [votes[text] for text in last.filter(pl.col("label") == 0)["text"]]
    assert of_x == sorted(of_x, reverse=True)
    few = rows_of(state, (2, 1), api).rows
    assert api.calls == []
    assert few["text"].to_list() == last["text"][[0, 1, 4]].to_list()
    many = rows_of(state, (9, 2)).rows
    assert many["label"].to_list() == ["x"] * 9 + ["y"] * 2
    assert many["parent"].to_list() == [0, 1, 2, 3, 0, 1, 2, 3, 0, 4, 5]
    assert many["variation"].to_list() == [0] * 4 + [1] * 4 + [2] + [0] * 2
    assert many["text"][0] == few["text"][0] != many["text"][4]


def test_blank_rows_are_left_out(tmp_path):
    class Silent(WordApi):
        def vary(self, texts, labels, *, degree, seed, progress=None):
            return [" "] * len(texts)

    corpus = rows_of(evolve(tmp_path / "a"), (6, 2), Silent())
    assert corpus.rows.height == 6
    assert (corpus.facts["survivors"], corpus.facts["variations"]) == (6, 0)
    assert corpus.facts["turned_down"] == {"blank": 2}


def plan_of(config=None, terms=None, epsilon=2.0):
    return priced(AugPe(config or make_config(), terms or make_terms()), epsilon)


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
    votes = plan.stage(STAGE).mechanism
    assert (votes.relation, votes.max_records_per_unit, votes.iterations) == (relation, 3, 3)


def test_there_is_no_run_without_noise():
    # Nine published scripts default to noise = 0, and nothing warns.
    assert "Expected a part of the budget" in plan_of(epsilon=0.0).refusal
    plan = plan_of(epsilon=1e6)
    assert plan.parameters["noise_std"] == 1.0


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
    told, private = [], make_private((40, 20))
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
    found = votes(0, population, EMBEDDER.embed(texts))
    assert found.tolist() == [20, 19, 10, 10]


def test_a_round_is_never_released_twice():
    population = random_population(("a", "b"), np.array([0, 1]))
    embeddings = EMBEDDER.embed(population["text"].to_list())
    votes = votes_of(plan_of(), make_private())
    votes(1, population, embeddings)  # a resumed run: one round is stored
    with pytest.raises(UnaccountedReleaseError, match="round after"):
        votes(1, population, embeddings)


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
    left = plan.stage(STAGE).mechanism.opened(2)
    assert left.remaining == 1
    with pytest.raises(UnaccountedReleaseError, match="rounds that are left"):
        left.opened(1)


# What is counted beforehand is what writer and embedder are asked for when the rounds run.

TOKENS = 16
SIZES = PublicSizes(
    text_tokens=TOKENS, documents=100, records=60, label_texts=("day", "night"), prompts=None,
    tokens_of=lambda words: len(words.split()),
)  # fmt: skip


class Counting(WordApi):
    """Counts tokens as if every text had as many, of which a degree is written anew."""

    written = 0.0

    def random(self, labels, **options):
        self.written += TOKENS * len(labels)
        return super().random(labels, **options)

    def vary(self, texts, labels, *, degree, **options):
        self.written += TOKENS * degree * len(texts)
        return super().vary(texts, labels, degree=degree, **options)


@pytest.mark.parametrize("changes", [{}, {"iterations": 1}, {"variations": 4}, {"lookahead": 2}])
def test_counted_work_is_what_writer_and_embedder_do(changes, tmp_path, monkeypatch):
    api, embedded = Counting(), []
    monkeypatch.setattr("dpsynth_assets.methods.evolution.method.open_api", lambda *_: api)
    monkeypatch.setattr(
        "dpsynth_assets.methods.rejection_sampling.WRITTEN_AGAIN", 0.0
    )  # All are kept here.
    embed = WordEmbedder.embed

    def counted(self, texts, *rest, **options):
        embedded.extend(texts)
        return embed(self, texts, *rest, **options)

    config = make_config(**changes, max_new_tokens=TOKENS)
    method = AugPe(config, make_terms())
    plan, private, public = method.plan(2.0), make_private(), make_public()
    monkeypatch.setattr(WordEmbedder, "embed", counted)
    made = plan.stage(STAGE).release(
        private, public, CheckpointFolders(tmp_path / "own"), lambda *_: None
    )
    work = plan.stage(STAGE).work(plan, SIZES)
    assert work.written == pytest.approx(api.written, rel=0.02)
    assert work.embedded == TOKENS * len(embedded)
    api.written = 0.0
    folder = Released(reservation="r", facts=made.value.facts, folder=made.value.files)
    method.writing().write(make_public(released={STAGE: folder}), config.rows, lambda *_: None)
    rows = method.writing().work(plan, SIZES)
    assert rows.written == pytest.approx(api.written, rel=0.02)


def test_an_engine_is_shown_whole_texts_and_the_model_their_beginnings():
    config = make_config(max_new_tokens=TOKENS)
    method = AugPe(config, make_terms())
    begun = method.writing().work(method.plan(2.0), SIZES)
    message = {"role": "user", "content": "Write of {sample}"}
    prompt = {"message_template": [message], "replacement_rules": []}
    shown = AugPe(
        make_config(
            max_new_tokens=TOKENS, api="engine", random_prompt=prompt, variation_prompt=prompt
        ),
        make_terms(),
    ).rows_work(method.plan(2.0), SIZES)
    assert begun.read < shown.read
    assert begun.written < shown.written


# Room that is asked for before an evolution holds every candidate of every round.


def test_candidates_of_all_rounds_fit_into_the_room_of_the_plan(tmp_path, api):
    method = AugPe(make_config(population=40), make_terms())
    stage = method.plan(2.0).stage(STAGE)
    room = room_of(method, stage, make_public())
    release = stage.release(
        make_private(), make_public(), CheckpointFolders(tmp_path), lambda *_: None
    )
    files = [file for file in release.value.files.rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) <= room.release
    rows = read_generations(release.value.files).height
    assert rows * method.config.max_new_tokens * 4 < room.release < rows * (1 << 16)
    assert room.kept == room.release


# Votes, and who survives.


def unit_rows(count, dimension, seed):
    rows = np.random.default_rng(seed).standard_normal((count, dimension)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def by_definition(vectors, vector_labels, candidates, candidate_labels):
    """Compares every pair in float64; the first of equally near candidates wins."""
    x, c = vectors.astype(np.float64), candidates.astype(np.float64)
    distances = (x**2).sum(1)[:, None] + (c**2).sum(1) - 2 * x @ c.T
    distances[vector_labels[:, None] != candidate_labels] = np.inf
    choices = distances.argmin(axis=1)
    return np.where(np.isfinite(distances.min(axis=1)), choices, NO_VOTE)


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10**6), st.integers(0, 60), st.integers(1, 25), st.integers(1, 4))
def test_every_record_votes_for_the_nearest_candidate_of_its_label(seed, records, size, labels):
    """Those of an undeclared label, -1, and of a label without candidates give no vote."""
    rng = np.random.default_rng(seed)
    vectors, candidates = unit_rows(records, 12, seed), unit_rows(size, 12, seed + 1)
    candidates *= rng.uniform(0.3, 1.0, (size, 1)).astype(np.float32)  # means of variations
    own, theirs = rng.integers(-1, labels, records), rng.integers(0, labels, size)
    found = nearest_candidates(vectors, own, candidates, theirs)
    assert found.tolist() == by_definition(vectors, own, candidates, theirs).tolist()


def test_records_in_the_order_of_their_labels_vote_as_before(tmp_path):
    vectors, candidates = unit_rows(200, 12, 5), unit_rows(30, 12, 6)
    own, theirs = np.arange(200) % 5 - 1, np.arange(30) % 3
    moved = VotingRecords.in_label_order(vectors, own)
    assert (np.diff(moved.labels) >= 0).all()

    def votes(vectors, labels, norms=None):
        choices = nearest_candidates(vectors, labels, candidates, theirs, norms=norms)
        return np.bincount(choices + 1).tolist()

    assert votes(moved.vectors, moved.labels, moved.norms) == votes(vectors, own)
    np.save(tmp_path / "records.npy", vectors)
    mapped = np.load(tmp_path / "records.npy", mmap_mode="r")
    kept = VotingRecords.in_label_order(mapped, own)
    assert (kept.vectors is mapped, kept.norms) == (True, None)


LABELS = np.array([0, 1, 0, 1, 0])


def test_the_best_of_each_label_survive_and_the_earlier_of_equals():
    votes = np.array([2, -5, 7, -1, 7])  # Negative noisy votes are no error.
    assert select(votes, LABELS, np.array([2, 1])).tolist() == [2, 4, 3]
    assert select(np.zeros(5), LABELS, np.array([9, 1])).tolist() == [0, 2, 4, 1]


@pytest.mark.parametrize(
    ("votes", "bits"), [([4, 4, 4, 4], 2.0), ([9, -2, 0], 0.0), ([-1, -1], 0.0), ([], 0.0)]
)
def test_entropy_counts_positive_votes(votes, bits):
    assert vote_entropy(np.array(votes)) == pytest.approx(bits)
