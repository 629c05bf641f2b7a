import json
import math

import pytest
from typer.testing import CliRunner

from dpsynth_assets.cli.main import app


def secret(**options):
    given = (f"--{name}={value}" for name, value in ({"prior": 1e-4} | options).items())
    return CliRunner().invoke(app, ["account", "secret", *given, "--json"])


def price(**options):
    return json.loads(secret(**options).stdout)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"delta": 2, "epsilon": 1}, "0 <= delta < 1"),
        ({"epsilon": "nan"}, "epsilon"),
        ({}, "exactly one of --posterior, --mu and --epsilon"),
        ({"mu": 3, "posterior": 0.01}, "exactly one of"),
        ({"mu": -1}, "mu"),
        ({"prior": "nan", "mu": 1}, "prior"),
        ({"mu": 1, "occurrences": 0}, "--occurrences"),
    ],
)
def test_what_has_no_price_is_one_line_and_exit_code_2(options, words):
    result = secret(**options)
    assert result.exit_code == 2
    assert words in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_one_secret_can_be_priced_in_every_form():
    budget = price(posterior=1e-3)
    assert price(mu=budget["mu"])["posterior"] == pytest.approx(1e-3, rel=1e-9)
    held = price(mu=budget["mu"] / 2, occurrences=2)
    assert held["posterior"] == pytest.approx(1e-3)


def test_dp_bounds_a_secret_after_group_privacy():
    given = {"prior": 0.01, "delta": 1e-5, "epsilon": 1}
    one, two_records = price(**given), price(**given, occurrences=2)
    assert two_records["epsilon"] == 2
    assert two_records["delta"] == pytest.approx(1e-5 * (1 + math.e))
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
