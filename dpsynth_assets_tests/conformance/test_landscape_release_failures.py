"""Noise from seeds, and noise drawn anew at each start, are bugs that audits notice."""

import ast
import inspect
from pathlib import Path

import numpy as np
import torch

from dpsynth_assets import privacy
from dpsynth_assets.attacks.audits.ledger_rules import REAL, seeded_everywhere

KERNEL = Path(inspect.getfile(privacy)).parent


def test_every_module_that_draws_noise_is_seeded_in_the_audit():
    drawing = {
        path.stem
        for path in sorted(KERNEL.glob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module == "dpsynth_assets.privacy.noise"
    }
    assert drawing == {name.split(",")[0] for name in REAL}


def test_seeding_for_an_audit_leaves_the_process_as_it_was():
    with seeded_everywhere():
        expected = np.random.random(), float(torch.rand(1))  # noqa: NPY002
    before = torch.random.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    with seeded_everywhere():
        assert (np.random.random(), float(torch.rand(1))) == expected  # noqa: NPY002
    assert torch.equal(before[0], torch.random.get_rng_state())
    assert np.array_equal(before[1], np.random.get_state()[1])  # noqa: NPY002
