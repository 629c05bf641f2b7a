"""What EPSVec is charged: the joint noise, its shares, and what the plan refuses."""

import pytest

from dpsynth_assets.datasets.public_spec import EngineSpec
from dpsynth_assets.methods.base import priced
from dpsynth_assets.methods.epsvec.config import CANDIDATES, NEGATIVES, SHOTS, VECTORS, EpsVecConfig
from dpsynth_assets.methods.epsvec.plan import VectorNoise
from dpsynth_assets.methods.epsvec.shots import public_candidates, read_candidates
from dpsynth_assets.methods.stages import Stage
from dpsynth_assets.models.prompt_templates import default_templates
from dpsynth_assets.privacy.accounting import epsilon_of
from dpsynth_assets.privacy.events import PoissonGaussianEvent, is_post_processing
from dpsynth_assets.privacy.gaussian_dp import gaussian_mu
from dpsynth_assets.privacy.guarantees import NeighboringRelation, PrivacyUnit

ADD_REMOVE, ZERO_OUT, REPLACE_ONE = NeighboringRelation
ENDPOINT = EngineSpec(kind="openai", model="m", base_url="https://host/v1")
PROMPTED = {"engine": ENDPOINT, "prompts": default_templates("visits", labelled=True)}
UNCOUNTED = {"public_records": None}
UNSAMPLED = {"public_records": 5000, "accountant": "zcdp", "relation": REPLACE_ONE}


@pytest.mark.parametrize(("relation", "expected"), [
    (REPLACE_ONE, 0.06520964851503987), (ADD_REMOVE, 0.03260482425751993),
    (ZERO_OUT, 0.03260482425751993),
])  # fmt: skip
def test_noise_is_the_joint_noise_of_the_reference_at_the_papers_settings(relation, expected):
    # n = 500, C = 5.5, L = 4, ε of the vectors 2.9, δ = 5e-6, no subsampling.
    noise = VectorNoise(
        noise_multiplier=1 / gaussian_mu(2.9, 5e-6),
        sampling_probability=1.0,
        relation=relation,
        max_records_per_unit=1,
    )
    assert 5.5 * noise.noise_std(layers=4, records=500) == pytest.approx(expected, rel=1e-4)


def test_fixed_shots_at_the_papers_epsilon_get_the_noise_of_the_reference(cases):
    config = cases.config(use_vectors=False)
    for relation, expected in [(ADD_REMOVE, 30.74956613197769), (REPLACE_ONE, 43.486453460931244)]:
        plan = cases.method(config, cases.terms(relation=relation)).plan(0.1)
        assert plan.parameters["shots_noise_std"] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("accountant", ["tight", "zcdp"])
@pytest.mark.parametrize("share", [0.01, 0.3])
def test_both_releases_together_cost_the_target_and_not_more(cases, accountant, share):
    terms = cases.terms(accountant=accountant)
    plan = cases.method(cases.config(shots_share=share), terms).plan(5.0)
    whole = epsilon_of(list(plan.charges.values()), terms.delta, accountant)
    # Beside whole counts the noise is found to 1e-4, and ρ of the rest is as much smaller.
    assert 5.0 * (1 - (2e-4 if accountant == "tight" else 1e-6)) < whole <= 5.0
    assert plan.epsilon == whole
    assert float(plan.charges[SHOTS].rho / plan.event.rho) == pytest.approx(share, rel=0.02)


def test_a_unit_of_three_records_needs_three_times_the_noise(cases):
    units = (PrivacyUnit(), PrivacyUnit(column="customer", max_records=3))
    one, three = (cases.method(cases.config(), cases.terms(unit=unit)).plan(5.0) for unit in units)
    assert one.charges.keys() == three.charges.keys()
    assert three.parameters["shots_noise_std"] == pytest.approx(
        3 * one.parameters["shots_noise_std"]
    )
    stds = [plan.stage(VECTORS).mechanism.noise_std(layers=2, records=10) for plan in (one, three)]
    assert stds[1] == pytest.approx(3 * stds[0], rel=1e-3)  # larger noise on whole counts is closer


@pytest.mark.parametrize(
    ("relation", "accountant"),
    [(ADD_REMOVE, "zcdp"), (REPLACE_ONE, "tight")],
)
def test_sampling_needs_less_noise_at_the_same_cost(cases, accountant, relation):
    terms = cases.terms(public_records=5000, accountant=accountant, relation=relation)
    whole = cases.method(cases.config(), terms).plan(3.0)
    config = cases.config(vector_records=250)
    sampled = cases.method(config, terms).plan(3.0)
    event = sampled.charges[VECTORS]
    assert isinstance(event, PoissonGaussianEvent)
    assert event.sampling_probability == 0.05
    assert epsilon_of(list(sampled.charges.values()), terms.delta, accountant) <= 3.0
    stds = [
        plan.stage(VECTORS).mechanism.noise_std(layers=1, records=1) for plan in (whole, sampled)
    ]
    assert stds[1] < 0.5 * stds[0]


def test_a_sample_of_all_records_is_no_sample(cases):
    plan = cases.method(cases.config(vector_records=400), cases.terms()).plan(3.0)
    assert plan.parameters["sampling_probability"] == 1.0
    assert plan.charges == cases.method(cases.config(), cases.terms()).plan(3.0).charges


def test_parts_that_are_left_out_are_not_charged(cases):
    def stages(**changes):
        return set(cases.method(cases.config(**changes)).plan(3.0).charges)

    assert stages() == {SHOTS, VECTORS}
    assert stages(use_vectors=False) == {SHOTS}
    assert stages(use_fixed_shots=False) == {VECTORS}
    free = cases.method(cases.config(use_vectors=False, use_fixed_shots=False)).plan(0.0)
    assert is_post_processing(free.event)
    assert free.refusal is None


def test_the_noise_that_is_written_down_is_the_noise_of_the_mechanisms(cases):
    plan = cases.method(cases.config(vector_records=20)).plan(3.0)
    shots, vectors = plan.stage(SHOTS).mechanism, plan.stage(VECTORS).mechanism
    assert shots.scale == plan.parameters["shots_noise_std"]
    assert vectors.noise_multiplier == plan.parameters["vector_noise_multiplier"]
    assert vectors.sampling_probability == plan.parameters["sampling_probability"] == 0.5
    assert plan.charges == {SHOTS: shots.event(), VECTORS: vectors.event()}


@pytest.mark.parametrize(("settings", "terms", "told"), [
    ({"vector_records": 50}, UNSAMPLED, "does not count the sampling"),
    ({"vector_records": 5}, UNCOUNTED, "declared number of records"),
    ({"use_fixed_shots": False}, UNCOUNTED, "strength_unit: clip_bound"),
    ({}, PROMPTED, "private text"),
    ({"use_vectors": False}, {"engine": ENDPOINT}, "Declare prompt in the dataset file"),
])  # fmt: skip
def test_what_cannot_be_released_is_refused_and_charges_nothing(cases, settings, terms, told):
    plan = priced(cases.method(cases.config(**settings), cases.terms(**terms)), 3.0)
    assert told in plan.refusal
    assert "\n" not in plan.refusal
    assert not plan.charges


@pytest.mark.parametrize(("settings", "terms"), [
    ({}, UNCOUNTED),  # The histogram of shots counts records.
    ({"use_fixed_shots": False, "strength_unit": "clip_bound"}, UNCOUNTED),
    ({"use_vectors": False}, PROMPTED),
])  # fmt: skip
def test_what_needs_no_number_or_sends_no_record_is_planned(cases, settings, terms):
    assert cases.method(cases.config(**settings), cases.terms(**terms)).plan(3.0).refusal is None


@pytest.mark.parametrize(("settings", "words"), [
    ({"layers": (1, 1)}, "distinct layer numbers"),
    ({"layers": (1, 2, 3), "strengths": (1.0, 2.0)}, "one for each of 3"),
    ({"candidates": 1, "shots": 2}, "shots <= kept_shots <= candidates"),
])  # fmt: skip
def test_settings_that_do_not_fit_say_so(settings, words):
    with pytest.raises(ValueError, match=words):
        EpsVecConfig(**settings)


# Stages: which there are, which are free, and which settings each depends on.

ALL = (CANDIDATES, SHOTS, NEGATIVES, VECTORS)


def stages(cases, **changes):
    return {each.name: each for each in cases.method(cases.config(**changes)).stages()}


def test_candidates_and_negatives_read_nothing_private(cases):
    made = stages(cases)
    assert tuple(made) == ALL
    assert [made[name].public for name in ALL] == [True, False, True, False]
    assert made[SHOTS].needs_embeddings
    assert made[VECTORS].after == (SHOTS, NEGATIVES)


def test_a_public_stage_cannot_ask_for_private_inputs():
    with pytest.raises(ValueError, match="read no private data"):
        Stage(name="pool", title="Pool.", make=print, needs_embeddings=True)


def test_public_inputs_are_those_that_settings_use(cases):
    def needs(config):
        return cases.method(config).public_inputs

    assert needs(cases.config()) == {"public_language_model", "text_embedder", "public_corpus"}
    bare = cases.config(use_vectors=False, use_fixed_shots=False)
    assert needs(bare) == {"public_language_model"}
    judged = cases.config(rejection={"judge": "likelihood"})
    assert "public_corpus" in cases.method(judged).writing().reads
    plain = cases.method(cases.config())
    assert plain.writing().reads == plain.public_inputs


def test_candidates_may_be_public_documents_the_same_for_every_label(cases, engine, tmp_path):
    config = cases.config(candidate_source="public_corpus")
    assert "public_corpus" in cases.method(config).public_inputs
    public = cases.public(engine)
    cases.run(tmp_path, config, cases.private(cases.records(20)), public)
    pool = read_candidates(tmp_path / CANDIDATES)
    ours = [pool.filter(pool["label"] == label)["text"].to_list() for label in (0, 1)]
    assert ours[0] == ours[1]
    assert len(set(ours[0])) == config.candidates
    assert set(ours[0]) <= set(public.public_records["text"])
    with pytest.raises(ValueError, match="got 8"):
        public_candidates(ours[0], 2, cases.config(kept_shots=9, candidates=20), seed=0)
