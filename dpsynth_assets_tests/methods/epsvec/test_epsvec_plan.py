"""What EPSVec is charged: the joint noise, its shares, and what the plan refuses."""

import pytest

from dpsynth_assets.datasets.public_spec import EngineSpec
from dpsynth_assets.methods.base import priced
from dpsynth_assets.methods.epsvec.config import SHOTS, VECTORS, EpsVecConfig
from dpsynth_assets.methods.epsvec.plan import VectorNoise
from dpsynth_assets.models.prompt_templates import default_templates
from dpsynth_assets.privacy.accounting import epsilon_of
from dpsynth_assets.privacy.events import PoissonGaussianEvent, is_post_processing
from dpsynth_assets.privacy.gaussian_dp import gaussian_mu
from dpsynth_assets.privacy.guarantees import NeighboringRelation, PrivacyUnit

ADD_REMOVE, ZERO_OUT, REPLACE_ONE = NeighboringRelation
ENDPOINT = EngineSpec(kind="openai", model="m", base_url="https://host/v1")


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


def test_a_sample_that_amplifies_nothing_is_refused(cases):
    terms = cases.terms(public_records=5000, accountant="zcdp", relation=REPLACE_ONE)
    plan = priced(cases.method(cases.config(vector_records=50), terms), 3.0)
    assert "does not count the sampling" in plan.refusal


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


def test_private_text_never_goes_to_an_endpoint(cases):
    terms = cases.terms(engine=ENDPOINT, prompts=default_templates("visits", labelled=True))
    refusal = priced(cases.method(cases.config(), terms), 3.0).refusal
    assert "private text" in refusal
    assert "\n" not in refusal
    shots_only = cases.config(use_vectors=False)
    assert cases.method(shots_only, terms).plan(3.0).refusal is None
    document = priced(cases.method(shots_only, cases.terms(engine=ENDPOINT)), 3.0)
    assert "Declare prompt in the dataset file" in document.refusal


def test_a_sample_needs_a_declared_number_of_records(cases):
    terms = cases.terms(public_records=None)
    refused = priced(cases.method(cases.config(vector_records=5), terms), 3.0)
    assert "declared number of records" in refused.refusal
    assert not refused.charges
    assert cases.method(cases.config(), terms).plan(3.0).refusal is None


@pytest.mark.parametrize(("settings", "words"), [
    ({"layers": (1, 1)}, "distinct layer numbers"),
    ({"layers": (1, 2, 3), "strengths": (1.0, 2.0)}, "one for each of 3"),
    ({"candidates": 1, "shots": 2}, "shots <= kept_shots <= candidates"),
])  # fmt: skip
def test_settings_that_do_not_fit_say_so(settings, words):
    with pytest.raises(ValueError, match=words):
        EpsVecConfig(**settings)
