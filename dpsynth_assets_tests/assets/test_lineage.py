"""A graph that would let private data reach a release unaccounted must not load."""

import dagster as dg
import pytest

from dpsynth_assets.lineage import PrivacyLineageError, verify_privacy_lineage
from dpsynth_assets.tags import INTERNAL, MECHANISM, PRIVACY, PUBLIC, RELEASED, SENSITIVE


def asset(name, level, deps=(), mechanism=None, **options):
    tags = {PRIVACY: level} if level else {}
    if mechanism:
        tags[MECHANISM] = mechanism

    @dg.asset(name=name, deps=list(deps), tags=tags, **options)
    def body():
        return None

    return body


def verify(*assets):
    verify_privacy_lineage(dg.Definitions(assets=list(assets)))


def test_mechanism_between_sensitive_and_released_is_accepted():
    verify(
        asset("records", SENSITIVE),
        asset("histogram", RELEASED, ["records"], mechanism="laplace"),
        asset("corpus", RELEASED, ["histogram"]),
        asset("report", INTERNAL, ["corpus", "records"]),
    )


def test_released_asset_that_reads_sensitive_data_directly_is_refused():
    with pytest.raises(PrivacyLineageError, match="statistics <- records"):
        verify(asset("records", SENSITIVE), asset("statistics", RELEASED, ["records"]))


def test_released_asset_behind_a_public_middleman_is_refused_with_the_whole_path():
    with pytest.raises(PrivacyLineageError, match="corpus <- middle <- records"):
        verify(
            asset("records", SENSITIVE),
            asset("middle", RELEASED, ["records"]),
            asset("corpus", RELEASED, ["middle"]),
        )


def test_public_asset_cannot_depend_on_sensitive_data():
    with pytest.raises(PrivacyLineageError, match="public asset"):
        verify(asset("records", SENSITIVE), asset("model", PUBLIC, ["records"]))


@pytest.mark.parametrize("mechanism", [None, "laplace"])
def test_nothing_released_depends_on_an_internal_score(mechanism):
    with pytest.raises(PrivacyLineageError, match="tuned <- report"):
        verify(
            asset("report", INTERNAL),
            asset("tuned", RELEASED, ["report"], mechanism=mechanism),
        )


def test_sensitive_asset_cannot_depend_on_an_internal_score():
    with pytest.raises(PrivacyLineageError, match="records <- report"):
        verify(asset("report", INTERNAL), asset("records", SENSITIVE, ["report"]))


def test_untagged_asset_is_refused():
    with pytest.raises(PrivacyLineageError, match="expected the tag"):
        verify(asset("unnamed", None))


def test_automated_mechanism_is_refused():
    with pytest.raises(PrivacyLineageError, match="must not be automated"):
        verify(
            asset(
                "histogram",
                RELEASED,
                mechanism="laplace",
                automation_condition=dg.AutomationCondition.eager(),
            )
        )


def test_mechanism_with_a_retry_policy_is_refused():
    with pytest.raises(PrivacyLineageError, match="retry policy"):
        verify(
            asset(
                "histogram",
                RELEASED,
                mechanism="laplace",
                retry_policy=dg.RetryPolicy(max_retries=1),
            )
        )


def test_mechanism_whose_output_is_not_released_is_refused():
    with pytest.raises(PrivacyLineageError, match="must be tagged released"):
        verify(asset("histogram", SENSITIVE, mechanism="laplace"))
