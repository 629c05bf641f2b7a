"""Every audit passes on the code of this repository, and fails on every bug planted for it.

Statistical audits fail on correct code with probability at most 1e-6 each (`FALSE_ALARM`); sizes
are chosen so that a planted bug is missed about as rarely.
"""

import pytest

from dpsynth_assets.methods.audits import AUDITS
from dpsynth_assets_tests.prepared import audited

pytestmark = pytest.mark.statistical

PLANTED = [(audit, bug) for audit in AUDITS for bug in audit.planted]


@pytest.mark.parametrize("audit", AUDITS, ids=lambda audit: audit.name)
def test_the_claim_survives_its_audit(audit, tmp_path_factory):
    result = audited(tmp_path_factory, audit.name)
    assert result.passed, result


@pytest.mark.parametrize(
    ("audit", "bug"), PLANTED, ids=[f"{audit.name}: {bug}" for audit, bug in PLANTED]
)
def test_a_planted_bug_is_noticed(audit, bug):
    result = audit.run(bug)
    assert not result.passed, result


def test_exact_audits_say_the_same_every_time(tmp_path_factory):
    for audit in AUDITS:
        first = audited(tmp_path_factory, audit.name)
        # Not where a token is drawn (median-bound), and where one run has taken long enough.
        if audit.kind == "exact" and audit.name != "median-bound" and first.seconds < 1:
            second = audit.run()
            assert (first.claimed, first.observed) == (second.claimed, second.observed)
