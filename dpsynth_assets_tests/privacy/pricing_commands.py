"""One valid call of every command of `dpsynth account` and `dpsynth calibrate`."""

import json

from typer.testing import CliRunner

from dpsynth_assets.cli.main import app

PREDICTION = {
    "expected-batch-size": 255,
    "clip-bound": 10,
    "temperature": 2,
    "delta": 1e-6,
    "logit-slack": 0,
}
"""As printed: what rounding costs is a price of its own."""

TRAINING = {
    "records": 1000,
    "expected-batch-size": 100,
    "steps": 4,
    "delta": 1e-6,
    "histogram-noise-std": 20,
}
UNIT = {"max-records-per-unit": 1}

CALLS = {
    "account private-prediction": {
        **PREDICTION,
        "private-tokens": 100,
        "svt-noise-scale": 0.2,
        "at-epsilon": 3,
        "records": 120_000,
        **UNIT,
    },
    "account dp-sgd": {**TRAINING, "noise-multiplier": 3, **UNIT},
    "account secret": {"prior": 1e-4, "posterior": 1e-3},
    "calibrate private-prediction": {
        **PREDICTION,
        "epsilon": 3,
        "svt-noise-scale": 0.2,
        **UNIT,
    },
    "calibrate dp-sgd": {**TRAINING, "epsilon": 1, **UNIT},
}
"""Every option that takes a number is given, so that each can be made invalid."""


def invoke(name, *flags, **changes):
    """Runs the command with its valid options, `changes` made; None leaves an option out."""
    renamed = {option.replace("_", "-"): value for option, value in changes.items()}
    options = {**CALLS[name], **renamed}
    given = [
        part
        for option, value in options.items()
        if value is not None
        for part in (f"--{option}", str(value))
    ]
    return CliRunner().invoke(app, [*name.split(), *given, *flags])


def price(name, **changes):
    """Returns the JSON object that the command prints."""
    result = invoke(name, "--json", **changes)
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)
