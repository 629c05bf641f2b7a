import json

import pytest

from dpsynth_assets_tests.children import dpsynth

TOKENS_AND_HISTOGRAM = [
    {"type": "bounded_range", "eta": 0.1875, "count": 60},
    {"type": "discrete_laplace", "scale": 10.0, "sensitivity": 1},
]


def compose(text, *flags):
    return dpsynth("account", "compose", "-", "--delta", "1e-6", *flags, input=text)


def test_any_list_of_events_is_priced_together():
    asked = ("--json", "--accountant")
    zcdp, tight = (
        json.loads(compose(json.dumps(TOKENS_AND_HISTOGRAM), *asked, accountant).stdout)
        for accountant in ("zcdp", "tight")
    )
    for values in (zcdp, tight):
        alone = values["epsilon_of_each_alone"]
        assert max(alone) < values["epsilon"] < sum(alone)
        assert values["rho"] == pytest.approx(60 * 0.1875**2 / 8 + 0.1**2 / 2)
    assert tight["epsilon"] < zcdp["epsilon"]


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
