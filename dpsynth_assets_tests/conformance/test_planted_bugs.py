"""Every audit passes on the code of this repository, and fails on every bug planted for it.

Statistical audits fail on correct code with probability at most 1e-6 each (`FALSE_ALARM`); sizes
are chosen so that a planted bug is missed about as rarely.
"""

import ast
import inspect
from pathlib import Path

import numpy as np
import pytest
import torch

from dpsynth_assets import privacy
from dpsynth_assets.attacks.audits.ledger_rules import REAL, seeded_everywhere
from dpsynth_assets.methods.audits import AUDITS
from dpsynth_assets_tests.prepared import audited

PLANTED = [(audit, bug) for audit in AUDITS for bug in audit.planted]


@pytest.mark.statistical
@pytest.mark.parametrize("audit", AUDITS, ids=lambda audit: audit.name)
def test_the_claim_survives_its_audit(audit, tmp_path_factory):
    result = audited(tmp_path_factory, audit.name)
    assert result.passed, result


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("audit", "bug"), PLANTED, ids=[f"{audit.name}: {bug}" for audit, bug in PLANTED]
)
def test_a_planted_bug_is_noticed(audit, bug):
    result = audit.run(bug)
    assert not result.passed, result


@pytest.mark.statistical
def test_exact_audits_say_the_same_every_time(tmp_path_factory):
    for audit in AUDITS:
        first = audited(tmp_path_factory, audit.name)
        # Not where a token is drawn (median-bound), and where one run has taken long enough.
        if audit.kind == "exact" and audit.name != "median-bound" and first.seconds < 1:
            second = audit.run()
            assert (first.claimed, first.observed) == (second.claimed, second.observed)


def test_every_module_that_draws_noise_is_seeded_in_the_audit():
    drawing = {
        path.stem
        for path in Path(inspect.getfile(privacy)).parent.glob("*.py")
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
