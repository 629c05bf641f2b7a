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


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"delta": 2, "posterior": None, "epsilon": 1}, "0 <= delta < 1"),
        ({"posterior": None}, "exactly one of --posterior, --mu and --epsilon"),
        ({"mu": 3}, "got 2"),
    ],
)
def test_bad_input_names_what_is_wrong(changes, words):
    result = invoke_named("account secret", **changes)
    assert result.exit_code == 2
    assert words in result.stderr


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


# ------------------------------------------------------------------ laws


def test_replacing_a_record_costs_twice_its_removal():
    for name, key, factor in [
        ("account private-prediction", "eta", 2),
        ("account private-prediction", "svt_epsilon_per_token", 2),
    ]:
        one = price(name)[key]
        assert price(name, relation="replace-one")[key] == pytest.approx(factor * one)
        assert price(name, max_records_per_unit=3)[key] == pytest.approx(3 * one)


def test_a_prompt_that_turns_into_another_costs_as_a_replaced_record():
    name = "account private-prediction"
    replaced = price(name, contexts_changed="replace")
    assert replaced["epsilon"] == price(name, relation="replace-one")["epsilon"]


@pytest.mark.parametrize(
    "name", [name for name, options in CALLS.items() if "logit-slack" in options]
)
def test_rounding_is_charged_as_methods_charge_it_unless_told_otherwise(name):
    key = "svt_epsilon_per_token"
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
    tokens = price(
        "account private-prediction",
        **told,
        private_tokens=plain.plan.tokens_per_batch,
        svt_noise_scale=None,
    )
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


def test_private_prediction_is_its_two_parts_and_the_test_pays_off_below_its_break_even():
    both = price("account private-prediction")
    tokens = price("account private-prediction", svt_noise_scale=None)
    assert both["svt_epsilon_per_token"] == pytest.approx(2 / (255 * 0.2))
    assert both["rho"] == pytest.approx(tokens["rho"] + 100 * both["rho_per_token_test"])
    assert both["epsilon"] < both["epsilon_closed_form"]
    assert (both["batches"], both["private_tokens_in_all"]) == (470, 47_000)
    fraction = both["break_even_private_fraction"]
    assert fraction == pytest.approx(1 - both["svt_share"])
    private = {"svt_noise_scale": None, "private_tokens": round(100 / fraction)}
    untested = price("account private-prediction", **private)
    assert untested["rho"] == pytest.approx(both["rho"], rel=1e-2)


def test_delta_at_an_epsilon_inverts_the_epsilon_at_delta():
    epsilon = price("account private-prediction")["epsilon"]
    again = price("account private-prediction", at_epsilon=epsilon)
    assert again["delta_at_epsilon"] == pytest.approx(again["delta"], rel=1e-6)


def test_training_is_priced_alone_and_with_its_histogram():
    values = price("account dp-sgd")
    parts = values["epsilon_training"], values["epsilon_histogram"]
    assert max(parts) < values["epsilon"] < sum(parts)
    alone = price("account dp-sgd", histogram_noise_std=None)
    assert alone["epsilon"] == alone["epsilon_training"] == pytest.approx(parts[0])


def test_one_secret_can_be_priced_in_every_form():
    budget = price("account secret")
    nothing = {"posterior": None}
    from_mu = price("account secret", **nothing, mu=budget["mu"])
    assert from_mu["posterior"] == pytest.approx(1e-3, rel=1e-9)
    held = price("account secret", **nothing, mu=budget["mu"] / 2, occurrences=2)
    assert held["posterior"] == pytest.approx(1e-3)


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
