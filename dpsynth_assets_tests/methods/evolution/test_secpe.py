"""Laws of SecPE: what is planned and charged, what is read, and how representatives vote."""

import numpy as np
import polars as pl
import pytest

from dpsynth_assets.datasets.secrets import SecretKindSpec, SecretsSpec
from dpsynth_assets.methods.base import priced
from dpsynth_assets.methods.evolution import SecPe
from dpsynth_assets.methods.evolution.config import SecPeConfig
from dpsynth_assets.methods.evolution.population import random_population
from dpsynth_assets.methods.evolution.private_evolution import (
    CLUSTER_STAGE,
    RepresentativeVotes,
    quota_votes,
)
from dpsynth_assets.methods.evolution.secret_clusters import Representatives, public_clusters
from dpsynth_assets.methods.inputs import Released
from dpsynth_assets.privacy.accounting import epsilon_of
from dpsynth_assets.privacy.errors import UnaccountedReleaseError
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.secret_protection import posterior_of_events
from dpsynth_assets_tests.checkpoint_folders import CheckpointFolders
from dpsynth_assets_tests.methods.evolution.conftest import (
    WORDS,
    make_private,
    make_public,
    make_terms,
)

EMAIL, NAME = (
    SecretKindSpec(**known, detector="regex", pattern=".")
    for known in (
        {"name": "email", "prior": 1e-4, "posterior": 1e-3, "max_records": 2},
        {"name": "name", "prior": 1e-2, "posterior": 5e-2, "max_records": 3},
    )
)
PUBLIC = pl.DataFrame(
    {
        "text": [f"{WORDS[row % 4]} {row}" for row in range(40)],
        "label": ["x" if row < 30 else "y" for row in range(40)],
    }
)


def promise(*kinds, **changes):
    return SecretsSpec(kinds=list(kinds or (EMAIL, NAME)), **changes)


def terms(**changes):
    return make_terms(**{"secrets": promise(), **changes})


def config(**changes):
    settings = {"clusters": 3, "iterations": 3, "population": 6, "variations": 3, "rows": 10}
    return SecPeConfig(**settings | changes)


def plan(settings=None, known=None):
    return priced(SecPe(settings or config(), known or terms()), 0.0)


def released(settings=None, known=None, private=None, made=None):
    settings, known = settings or config(), known or terms()
    clusters = public_clusters(settings, known, make_public(public_records=PUBLIC))
    mechanism = (made or plan(settings, known)).stage(CLUSTER_STAGE).mechanism
    return mechanism.release(clusters, private or make_private())


# ------------------------------------------------------------------------------------- plan


def test_every_kind_keeps_its_own_bound():
    made = plan()
    for budget in (EMAIL, NAME):
        assert posterior_of_events([made.event], budget.prior) <= budget.posterior
        assert made.parameters["posteriors"][budget.name] <= budget.posterior
    assert (made.guarantee, made.epsilon) == (GuaranteeType.SECRET, None)
    assert list(made.charges) == [CLUSTER_STAGE]


def test_the_noise_is_the_least_that_some_kind_needs():
    reached = plan().parameters["posteriors"]
    used = [reached["email"] / EMAIL.posterior, reached["name"] / NAME.posterior]
    assert max(used) == pytest.approx(1.0, rel=1e-3)


def test_the_plan_counts_the_most_records_of_any_kind_for_all():
    assert plan().event.shifts[-1] == pytest.approx(3 * np.sqrt(2))


def test_a_share_leaves_room_for_other_releases():
    half = plan(config(secret_share=0.5))
    assert posterior_of_events([half.event, half.event], EMAIL.prior) <= EMAIL.posterior
    assert posterior_of_events([plan().event] * 2, EMAIL.prior) > EMAIL.posterior


def test_without_declared_secrets_there_is_nothing_to_promise():
    refused = plan(known=make_terms())
    assert refused.event is None
    assert "Declare kinds of secrets" in refused.refusal


# --------------------------------------------------------------------------- records as well


def record_level(target, **changes):
    settings = config(record_level=True, **changes)
    return SecPe(settings, terms()).plan(target)


def test_records_may_be_paid_for_by_the_same_release():
    made = record_level(0.5)
    assert made.guarantee is GuaranteeType.DP
    assert made.epsilon == pytest.approx(epsilon_of([made.event], 1e-5, "tight"))
    assert made.epsilon <= 0.5
    assert made.parameters["noise_std"] > plan().parameters["noise_std"]


def test_secrets_keep_their_noise_where_records_would_need_less():
    made = record_level(50.0)
    assert made.parameters["noise_std"] == plan().parameters["noise_std"]
    assert made.epsilon < 50.0


def test_group_privacy_of_the_record_event_is_the_secrets_own_event():
    of_records = record_level(50.0).event
    assert posterior_of_events([of_records], EMAIL.prior, occurrences=3) == pytest.approx(
        posterior_of_events([plan().event], EMAIL.prior), rel=1e-6
    )


def test_records_without_a_share_of_the_budget_are_refused():
    with pytest.raises(ValueError, match="Expected a part of the budget"):
        record_level(0.0)


# ------------------------------------------------------------------------- public incidence


@pytest.fixture
def incidence(tmp_path):
    rows = [("r0", "a"), ("r1", "a"), ("r1", "b"), ("r2", "b"), ("r3", "c")]
    path = tmp_path / "incidence.parquet"
    pl.DataFrame(
        {"record_id": [r for r, _ in rows], "secret": [s for _, s in rows], "kind": "email"}
    ).write_parquet(path)
    return path


def test_declared_incidence_is_sampled_by_the_linear_program(incidence):
    known = terms(secrets=promise(EMAIL, public_incidence=str(incidence)))
    made = plan(known=known)
    # r1 shares both of its secrets: the program leaves it out, so one record of a secret remains.
    assert made.event.shifts[-1] == pytest.approx(np.sqrt(2))
    assert (
        made.parameters["noise_std"]
        < plan(known=terms(secrets=promise(EMAIL))).parameters["noise_std"]
    )
    assert released(known=known).counts.shape == (1, 6)


def test_another_incidence_is_another_plan(incidence):
    known = terms(secrets=promise(EMAIL, public_incidence=str(incidence)))
    before = plan(known=known).parameters["public_incidence"]
    pl.read_parquet(incidence).head(2).write_parquet(incidence)
    assert plan(known=known).parameters["public_incidence"] != before


def test_an_incidence_that_changed_after_the_plan_is_not_sampled(incidence):
    known = terms(secrets=promise(EMAIL, public_incidence=str(incidence)))
    made = plan(known=known)
    # Three secrets, each shared by two of three records: all three records are drawn.
    rows = {"record_id": ["r0", "r1", "r1", "r2", "r2", "r0"], "secret": list("aabbcc")}
    pl.DataFrame({**rows, "kind": "email"}).write_parquet(incidence)
    with pytest.raises(UnaccountedReleaseError, match="public incidence that was planned"):
        released(known=known, made=made)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda table: table.drop("kind"), "Expected columns"),
        (lambda table: table.with_columns(kind=pl.lit("phone")), "of kind 'phone'"),
        (lambda table: table.with_columns(secret=pl.lit("one")), "in 4 records"),
    ],
)
def test_an_incidence_that_contradicts_the_declaration_is_refused(incidence, change, message):
    change(pl.read_parquet(incidence)).write_parquet(incidence)
    known = terms(secrets=promise(EMAIL, public_incidence=str(incidence)))
    assert message in plan(known=known).refusal


def test_a_missing_incidence_is_refused(tmp_path):
    known = terms(secrets=promise(public_incidence=str(tmp_path / "none.parquet")))
    assert "public incidence" in plan(known=known).refusal


# ------------------------------------------------------------------------------------ clusters


def test_public_clusters_stand_for_their_label():
    clusters = public_clusters(config(), terms(), make_public(public_records=PUBLIC))
    assert clusters.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert clusters.counts[:3].sum() == 30
    assert clusters.counts[3:].sum() == 10


def test_a_label_without_documents_is_clustered_over_all():
    known = terms(labels=("x", "z"), label_texts=("x", "z"))
    clusters = public_clusters(config(), known, make_public(public_records=PUBLIC))
    assert clusters.counts[3:].sum() == 40


def test_released_counts_hold_the_records_of_their_label():
    made = released()
    counts = np.bincount(made.labels, weights=(made.counts - made.public_counts)[0])
    noise = plan().parameters["noise_std"] * np.sqrt(3)
    assert counts == pytest.approx([40, 20], abs=7 * noise)


def test_records_of_an_undeclared_label_and_no_records_at_all_are_no_error():
    private = make_private(counts=(5, 5), labels=("x", "unknown"))
    assert released(private=private).counts.shape == (1, 6)
    assert released(private=make_private(counts=(0, 0))).counts.shape == (1, 6)


def test_what_was_released_is_read_back_as_it_was(tmp_path):
    before = released()
    before.save(tmp_path)
    after = Representatives.load(tmp_path)
    assert all((getattr(before, name) == value).all() for name, value in vars(after).items())


# --------------------------------------------------------------------------------------- votes

CENTRES = np.array([[1.0, 0.0], [0.0, 1.0]], dtype=np.float32)
CANDIDATES = np.array([[0.9, 0.1], [0.8, 0.2], [0.1, 0.9], [0.7, 0.3]], dtype=np.float32)


def test_a_quota_divides_the_count_over_the_share_of_the_survivors():
    assert quota_votes(CENTRES, np.array([6.0, 2.0]), CANDIDATES, 4).tolist() == [2, 2, 2, 2]
    assert quota_votes(CENTRES, np.array([6.0, 4.0]), CANDIDATES, 2).tolist() == [6, 0, 4, 0]
    assert quota_votes(CENTRES, np.zeros(2), CANDIDATES, 2).tolist() == [0] * 4


def test_votes_stay_within_the_label_and_negative_counts_give_none():
    clusters = Representatives(
        centres=CENTRES[None],
        counts=np.array([[5.0, -3.0]]),
        labels=np.array([0, 1]),
        public_counts=np.zeros(2),
    )
    population = random_population(["a", "b", "c", "d"], np.array([0, 1, 1, 0]))
    votes = RepresentativeVotes(clusters, np.array([1, 1]))(0, population, CANDIDATES)
    assert votes.tolist() == [5, 0, 0, 0]


# -------------------------------------------------------------------------------------- stages


def test_only_the_clusters_cost_and_only_they_read_records(tmp_path, api):
    made = SecPe(config(), terms()).plan(0.0)
    paid, free = made.stages
    checkpoint = CheckpointFolders(tmp_path / "checkpoint")
    public = make_public(public_records=PUBLIC)
    release = paid.release(make_private(), public, checkpoint, lambda *_: None)
    clusters = Released(reservation="1", facts=release.value.facts, folder=release.value.files)
    public = make_public(public_records=PUBLIC, released={CLUSTER_STAGE: clusters})
    (folder := tmp_path / "population").mkdir()
    population = free.make(public, folder, lambda *_: None)
    assert release.cost.event == made.charges[CLUSTER_STAGE]
    assert release.cost.guarantee is GuaranteeType.SECRET
    assert release.value.facts["dp_guarantee"] == "none"
    assert (paid.public, paid.needs_embeddings, paid.needs_secrets) == (False, True, True)
    assert (free.public, free.needs_embeddings, free.needs_secrets) == (True, False, False)
    assert population.facts["iterations"] == 3


@pytest.mark.parametrize("record_level", [False, True])
def test_the_noise_that_is_written_down_is_the_noise_of_the_mechanism(record_level):
    made = SecPe(config(record_level=record_level), terms()).plan(2.0)
    mechanism = made.stage(CLUSTER_STAGE).mechanism
    assert mechanism.noise_std == made.parameters["noise_std"]
    assert mechanism.event() == made.event
