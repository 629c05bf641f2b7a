import json
import math

import pytest
from typer.testing import CliRunner

from dpsynth_assets.cli.main import app
from dpsynth_assets.cli.pricing.commands import down_significant, finite, up, up_significant
from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.methods.planning import plan_dataset
from dpsynth_assets.methods.private_prediction.config import MeanUniformConfig
from dpsynth_assets_tests.privacy.pricing_commands import CALLS, invoke as invoke_named, price

TABLE_10_TIGHT = [416, 373, 393, 409, 366, 387, 835, 723, 776, 785, 680, 730]


@pytest.mark.parametrize(("accountant", "tokens"), [("zcdp", 373), ("tight", 416)])
def test_tokens_invert_a_target(accountant, tokens):
    asked = {"expected_batch_size": 64, "clip_bound": 9, "temperature": 1.5, "tokens": None}
    asked |= {"target_epsilon": 10, "delta": 108_000**-1.1, "accountant": accountant}
    found = price("account tokens", **asked)
    assert (found["tokens"], found["eta"]) == (tokens, pytest.approx(0.1875))
    assert found["rho"] == pytest.approx(tokens * 0.1875**2 / 8)
    assert found["epsilon"] <= 10


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"delta": 2}, "0 < delta < 1"),
        ({"tokens": -3}, "count"),
        ({"tokens": None}, "exactly one of --tokens and --target-epsilon"),
        ({"target_epsilon": 3}, "both"),
        ({"tokens": None, "target_epsilon": "nan"}, "target_epsilon"),
    ],
)
def test_bad_input_names_what_is_wrong(changes, words):
    result = invoke_named("account tokens", **changes)
    assert result.exit_code == 2
    assert words in result.stderr


def test_table_10_is_reproduced():
    """Every printed count exactly, and a tenth more by optimal composition (Amin et al. 2025)."""
    rows = json.loads(CliRunner().invoke(app, ["account", "table10", "--json"]).stdout)
    assert all(row["tokens_zcdp"] == row["tokens_printed"] for row in rows)
    assert [row["tokens_tight"] for row in rows] == TABLE_10_TIGHT


# ------------------------------------------------------------------ every command


def not_a_number(value):
    raise AssertionError(f"{value} is not JSON")


@pytest.mark.parametrize("name", CALLS)
def test_every_command_prints_one_object_of_finite_numbers(name):
    result = invoke_named(name, "--json")
    assert result.exit_code == 0, result.stderr
    values = json.loads(result.stdout, parse_constant=not_a_number)
    assert isinstance(values, dict)
    assert len(result.stdout.strip().splitlines()) == 1
    protects = {"unit"} if name.endswith("secret") else {"relation", "max_records_per_unit"}
    assert protects <= values.keys()


@pytest.mark.parametrize("name", CALLS)
def test_every_sentence_says_whom_it_protects(name):
    if name.endswith("secret"):
        assert "secret" in invoke_named(name).stdout
        return
    result = invoke_named(name, relation="replace-one", records=CALLS[name].get("records"))
    assert result.exit_code == 0, result.stderr
    assert "replace-one of one record" in result.stdout


@pytest.mark.parametrize(
    ("name", "option"),
    [(name, option) for name in CALLS for option in CALLS[name] if option != "relation"],
)
def test_every_impossible_number_is_one_line_and_exit_code_2(name, option):
    for bad in ("nan", "-1", "many"):
        result = invoke_named(name, "--json", **{option: bad})
        assert result.exit_code == 2, bad
        assert result.stdout == ""
        assert len(result.stderr.strip().splitlines()) == 1
        assert "Traceback" not in result.stderr


@pytest.mark.parametrize("name", CALLS)
def test_misuse_of_options_is_one_line_and_exit_code_2(name):
    for arguments in ([*name.split()], [*name.split(), "--no-such-option", "1"]):
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 2
        assert len(result.stderr.strip().splitlines()) == 1


def test_a_useless_histogram_is_priced_without_a_table_of_its_losses():
    assert price("account histogram", max_records_per_unit=10**18)["epsilon"] == 1e17


# ------------------------------------------------------------------ laws


def test_replacing_a_record_costs_twice_its_removal():
    for name, key, factor in [
        ("account tokens", "eta", 2),
        ("account svt", "epsilon_per_token", 2),
        ("account bounded-range", "eta", 2),
        ("account gaussian", "mu", 2),
        ("account histogram", "pure_epsilon", 2),
    ]:
        one = price(name)[key]
        assert price(name, relation="replace-one")[key] == pytest.approx(factor * one)
        assert price(name, max_records_per_unit=3)[key] == pytest.approx(3 * one)
    # A replaced record's two counts are dominated a little closer than one count.
    one = price("account voting")["mu"]
    assert price("account voting", relation="replace-one")["mu"] == pytest.approx(
        math.sqrt(2) * one, rel=1e-3
    )
    assert price("account voting", max_records_per_unit=3)["mu"] == pytest.approx(3 * one, rel=1e-3)


def test_a_prompt_that_turns_into_another_costs_as_a_replaced_record():
    for name in ("account tokens", "account private-prediction", "account svt"):
        replaced = price(name, contexts_changed="replace")
        assert replaced["epsilon"] == price(name, relation="replace-one")["epsilon"]


@pytest.mark.parametrize(
    "name", [name for name, options in CALLS.items() if "logit-slack" in options]
)
def test_rounding_is_charged_as_methods_charge_it_unless_told_otherwise(name):
    key = "svt_epsilon_per_token" if "private-prediction" in name else "epsilon"
    assert price(name)[key] < price(name, logit_slack=1e-3)[key]
    unsaid = price(name, logit_slack=None)
    default = MeanUniformConfig.model_fields["logit_slack"].default
    assert unsaid["logit_slack"] == default > 0
    assert unsaid == price(name, logit_slack=default)
    more = {"batches_per_pass": unsaid["batches_per_pass"] + 1, "load": 2}
    for option, value in more.items():  # Both multiply the slack, and nothing else.
        assert price(name, logit_slack=None, **{option: value})[key] > unsaid[key]
        assert price(name, **{option: value})[key] == price(name)[key]


def test_the_price_of_a_plan_is_reproduced_by_its_public_settings(tmp_path, monkeypatch):
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path))
    settings = {"expected_batch_size": 64, "max_batches": 8}
    spec = PrivateDatasetSpec.model_validate(
        {
            "name": "letters",
            "source": {"path": "nowhere.jsonl"},
            "public_data": "elsewhere",  # No language model: the fields' own defaults hold.
            "budget": {"epsilon": 20.0, "delta": 1e-6},
            "cluster_histogram": {},
            "methods": [
                {"method": "mean_uniform", "settings": settings},
                {"method": "mean_svt", "settings": settings},
            ],
        }
    )
    plain, tested = plan_dataset(spec).methods
    told = {
        "expected_batch_size": plain.config.expected_batch_size,
        "clip_bound": plain.config.clip_bound,
        "temperature": plain.config.temperature,
        "logit_slack": None,
    }
    tokens = price("account tokens", **told, tokens=plain.plan.tokens_per_batch)
    assert tokens["eta"] == plain.plan.parameters["eta"]
    assert tokens["epsilon"] == plain.plan.epsilon
    both = price(
        "account private-prediction",
        **told | {"clip_bound": tested.config.clip_bound},
        private_tokens=tested.plan.tokens_per_batch,
        svt_noise_scale=tested.config.svt_noise_scale,
    )
    assert both["svt_epsilon_per_token"] == tested.plan.parameters["svt_epsilon"]
    assert both["epsilon"] == tested.plan.epsilon
    alone = price(
        "account svt",
        expected_batch_size=64,
        noise_scale=tested.config.svt_noise_scale,
        logit_slack=None,
    )
    assert alone["epsilon_per_token"] == tested.plan.parameters["svt_epsilon"]


def test_private_prediction_is_its_two_parts_and_the_test_pays_off_below_its_break_even():
    both = price("account private-prediction")
    tokens, svt = price("account tokens", tokens=100), price("account svt")
    assert svt["epsilon_per_token"] == pytest.approx(2 / (255 * 0.2))
    assert svt["pure_epsilon"] == pytest.approx(100 * svt["epsilon_per_token"])
    assert svt["epsilon"] < svt["pure_epsilon"]
    assert both["rho"] == pytest.approx(tokens["rho"] + svt["rho"])
    assert both["epsilon"] < both["epsilon_closed_form"]
    assert (both["batches"], both["private_tokens_in_all"]) == (470, 47_000)
    fraction = both["break_even_private_fraction"]
    assert fraction == pytest.approx(1 - both["svt_share"])
    private = {"svt_noise_scale": None, "private_tokens": round(100 / fraction)}
    untested = price("account private-prediction", **private)
    assert untested["rho"] == pytest.approx(both["rho"], rel=1e-2)


def test_delta_at_an_epsilon_inverts_the_epsilon_at_delta():
    for name in ("account private-prediction", "account gaussian"):
        epsilon = price(name)["epsilon"]
        again = price(name, at_epsilon=epsilon)
        assert again["delta_at_epsilon"] == pytest.approx(again["delta"], rel=1e-6)


def test_training_is_priced_alone_and_with_its_histogram():
    values = price("account dp-sgd")
    parts = values["epsilon_training"], values["epsilon_histogram"]
    assert max(parts) < values["epsilon"] < sum(parts)
    alone = price("account dp-sgd", histogram_noise_std=None)
    assert alone["epsilon"] == alone["epsilon_training"] == pytest.approx(parts[0])


def test_vectors_of_many_layers_are_one_gaussian():
    one = {"subset_fraction": 1, "histogram_noise_std": None}
    joint = price("account vectors", **one)
    assert joint["mu"] == pytest.approx(2 * 5.5 * 4**0.5 / 500 / 0.07)
    same = price("account gaussian", noise_multiplier=None, mu=joint["mu"], count=1, delta=1e-5)
    assert joint["epsilon"] == pytest.approx(same["epsilon"])
    with_shots = price("account vectors", subset_fraction=1)
    assert joint["epsilon"] < with_shots["epsilon"] < joint["epsilon"] + 0.3


def test_a_subset_of_fixed_size_amplifies_under_replace_one_only():
    amplified = price("account vectors", histogram_noise_std=None)
    assert amplified["epsilon"] < price("account vectors", subset_fraction=1)["epsilon"]
    refused = invoke_named("account vectors", relation="zero-out")
    assert refused.exit_code == 2
    assert "replace-one" in refused.stderr


def test_l2_bounds_are_one_for_all_layers_or_one_each():
    arguments = ["account", "vectors", "--records", "500", "--noise-std", "0.1", "--delta", "1e-5"]
    bounds = ["--l2-bound", "3", "--l2-bound", "4", "--layers", "2", "--json"]
    values = json.loads(CliRunner().invoke(app, [*arguments, *bounds]).stdout)
    assert values["sensitivity"] == pytest.approx(5 / 500)
    refused = CliRunner().invoke(app, [*arguments, *bounds, "--l2-bound", "5"])
    assert refused.exit_code == 2
    assert "once or 2 times" in refused.stderr


def test_draws_of_bounded_range_lie_between_their_bounds_and_one_has_a_closed_form():
    many = price("account bounded-range", count=50)
    assert many["epsilon_lower"] <= many["epsilon"] <= many["epsilon_zcdp"]
    assert many["epsilon"] == pytest.approx(many["epsilon_gaussian_reference"], rel=0.02)
    values = price("account bounded-range", eta=1, count=1, at_epsilon=0.5)
    exact = (1 - math.exp((0.5 - 1) / 2)) ** 2 / (1 - math.exp(-1))
    assert values["delta_at_epsilon"] == pytest.approx(exact, rel=1e-12)
    assert values["pure_epsilon"] == 1
    assert price("account bounded-range", eta=1, count=1, at_epsilon=1)["delta_at_epsilon"] == 0


def test_one_secret_can_be_priced_in_every_form():
    budget = price("account secret")
    nothing = {"posterior": None}
    from_mu = price("account secret", **nothing, mu=budget["mu"])
    assert from_mu["posterior"] == pytest.approx(1e-3, rel=1e-9)
    noise = {"noise_std": 1 / budget["mu"], "shifts": 1, "probabilities": 1}
    assert price("account secret", **nothing, **noise)["posterior"] == pytest.approx(1e-3, rel=1e-6)
    spread = {"noise_std": 1 / budget["mu"], "shifts": "0,1", "probabilities": "0.5,0.5"}
    assert price("account secret", **nothing, **spread)["posterior"] < 1e-3
    rounds = price("account secret", **nothing, mu=budget["mu"] / 2, rounds=4)
    held = price("account secret", **nothing, mu=budget["mu"] / 2, occurrences=2)
    assert rounds["posterior"] == pytest.approx(held["posterior"]) == pytest.approx(1e-3)


def test_sampling_helps_a_secret_under_removal_only():
    drawn = {"posterior": None, "noise_std": 3, "sampling_probabilities": "0.1,0.1"}
    removed = price("account secret", **drawn, adjacency="removal")
    substituted = price("account secret", **drawn, adjacency="substitution")
    assert removed["posterior"] < substituted["posterior"]
    counts = price("account secret", **drawn, adjacency="removal", release="counts")
    assert counts["posterior"] < removed["posterior"]
    assert counts["noise_std"] == removed["noise_std"] == 3
    assert counts["shifts"] == pytest.approx([0, 1, 2])
    assert substituted["posterior"] == pytest.approx(
        price("account secret", posterior=None, mu=2 * 2 / 3)["posterior"]
    )


def test_two_secret_bounds_compose_by_mu_and_not_by_sums():
    arguments = ["account", "secret", "--prior", "0.0001", "--json"]
    posteriors = ["--posterior", "0.005", "--posterior", "0.005"]
    values = json.loads(CliRunner().invoke(app, [*arguments, *posteriors]).stdout)
    assert values["posterior"] > values["posterior_sum"] == 0.01
    assert values["posterior_from_the_points_alone"] == 1


def test_dp_bounds_a_secret_after_group_privacy():
    given = {"posterior": None, "prior": 0.01, "delta": 1e-5}
    two_records = price("account secret", **given, epsilon=1, occurrences=2)
    assert two_records["epsilon"] == 2
    assert two_records["delta"] == pytest.approx(1e-5 * (1 + math.e))
    one = price("account secret", **given, epsilon=1)
    assert one["posterior_pairwise"] <= one["posterior_reference"]
    assert one["posterior_reference"] < two_records["posterior_reference"]


TOKENS_AND_HISTOGRAM = [
    {"type": "bounded_range", "eta": 0.1875, "count": 60},
    {"type": "discrete_laplace", "scale": 10.0, "sensitivity": 1},
]


def compose(text, *flags):
    return CliRunner().invoke(
        app, ["account", "compose", "-", "--delta", "1e-6", *flags], input=text
    )


def test_any_list_of_events_is_priced_together():
    asked = ("--at-epsilon", "3", "--json", "--accountant")
    zcdp, tight = (
        json.loads(compose(json.dumps(TOKENS_AND_HISTOGRAM), *asked, accountant).stdout)
        for accountant in ("zcdp", "tight")
    )
    for values in (zcdp, tight):
        alone = values["epsilon_of_each_alone"]
        assert max(alone) < values["epsilon"] < sum(alone)
        assert values["rho"] == pytest.approx(60 * 0.1875**2 / 8 + 0.1**2 / 2)
    assert tight["epsilon"] < zcdp["epsilon"]
    assert tight["delta_at_epsilon"] < zcdp["delta_at_epsilon"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"type":', "JSON list of events"),
        ('{"type": "gaussian"}', "another JSON value"),
        ("[1]", "another JSON value"),
        ("[]", "at least one event"),
        ('[{"type": "gaussian"}]', "noise_multiplier"),
        ('[{"type": "gaussian", "noise_multiplier": "wide"}]', "wide"),
        ('[{"type": "laplace"}]', "event type"),
        (
            '[{"type": "mixture_gaussian", "noise_std": 1, "shifts": [1], "probabilities": [1]}]',
            "secret",
        ),
    ],
)
def test_what_is_no_list_of_events_is_refused(text, words):
    result = compose(text)
    assert result.exit_code == 2
    assert words in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_printed_numbers_are_rounded_to_the_safe_side():
    assert up(1.00001) == "1.0001"
    assert up(0.00213) == "0.00213"
    assert up(math.inf) == "infinite"
    assert up_significant(0.123401) == "0.1235"
    assert up_significant(1.2340000000000002e-7) == "1.235e-07"
    assert up_significant(1.234e-7) == "1.234e-07"
    assert down_significant(0.12349) == "0.1234"
    assert finite({"a": [math.nan, 1.0]}) == {"a": [None, 1.0]}
