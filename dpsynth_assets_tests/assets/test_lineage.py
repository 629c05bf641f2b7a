"""A graph that would let private data reach a release unaccounted must not load."""

import ast
from pathlib import Path
from typing import ClassVar

import dagster as dg
import pytest

import dpsynth_assets
from dpsynth_assets.orchestration.lineage import PrivacyLineageError, verify_privacy_lineage
from dpsynth_assets.orchestration.resources.stores import PrivacyLedger, SensitiveStore
from dpsynth_assets.tags import INTERNAL, MECHANISM, PRIVACY, PUBLIC, RELEASED, SENSITIVE


def asset(name, level, deps=(), mechanism=None, **options):
    tags = {PRIVACY: level} if level else {}
    if mechanism:
        tags[MECHANISM] = mechanism

    @dg.asset(name=name, deps=list(deps), tags=tags | options.pop("more_tags", {}), **options)
    def body():
        return None

    return body


RECORDS, REPORT = asset("records", SENSITIVE), asset("report", INTERNAL)
REFUSED = {
    "statistics <- records": [RECORDS, asset("statistics", RELEASED, ["records"])],
    "corpus <- middle <- records": [
        RECORDS,
        asset("middle", RELEASED, ["records"]),
        asset("corpus", RELEASED, ["middle"]),
    ],
    "public asset": [RECORDS, asset("model", PUBLIC, ["records"])],
    "tuned <- report": [REPORT, asset("tuned", RELEASED, ["report"])],
    "paid <- report": [REPORT, asset("paid", RELEASED, ["report"], mechanism="laplace")],
    "records <- report": [REPORT, asset("records", SENSITIVE, ["report"])],
    "expected the tag": [asset("unnamed", None)],
    "must not be automated": [
        asset(
            "histogram",
            RELEASED,
            mechanism="laplace",
            automation_condition=dg.AutomationCondition.eager(),
        )
    ],
    "retry policy": [
        asset("paid", RELEASED, mechanism="laplace", retry_policy=dg.RetryPolicy(max_retries=1))
    ],
    "must be tagged released": [asset("histogram", SENSITIVE, mechanism="laplace")],
    "model <- sensitive_store": [
        asset("model", PUBLIC, mechanism="x", required_resource_keys={"sensitive_store"})
    ],
    "corpus <- own": [
        asset(
            "corpus",
            RELEASED,
            required_resource_keys={"own"},
            resource_defs={"own": SensitiveStore().get_resource_definition()},
        )
    ],
}


# What an asset or a check reads through a resource


class Through(dg.ConfigurableResource):
    """A harmless wrapper of a resource that is not."""

    opens_private_data: ClassVar[bool] = False
    inner: SensitiveStore


class Silent(dg.ConfigurableResource):
    """Says nothing about private data."""


RESOURCES = {
    "sensitive_store": SensitiveStore(),
    "renamed": SensitiveStore(),
    "through": Through(inner=SensitiveStore()),
    "silent": Silent(),
    "by_function": dg.ResourceDefinition(lambda _: SensitiveStore()),
    "ledger": PrivacyLedger(),
}
PRIVATE = [name for name in RESOURCES if name != "ledger"]


def verify(*assets, checks=()):
    verify_privacy_lineage(
        dg.Definitions(assets=list(assets), asset_checks=list(checks), resources=RESOURCES)
    )


@pytest.mark.parametrize("words", REFUSED)
def test_what_could_let_private_data_out_unaccounted_is_refused_with_the_whole_path(words):
    with pytest.raises(PrivacyLineageError, match=words):
        verify(*REFUSED[words])


def check(name, of, resources=(), **options):
    @dg.asset_check(name=name, asset=of, required_resource_keys=set(resources), **options)
    def body():
        return dg.AssetCheckResult(passed=True)

    return body


@pytest.mark.parametrize("level", [PUBLIC, RELEASED])
@pytest.mark.parametrize("resource", PRIVATE)
def test_what_is_shown_may_not_open_private_data_through_a_resource(level, resource):
    reader = asset("corpus", level, required_resource_keys={resource})
    with pytest.raises(PrivacyLineageError, match=f"corpus <- {resource}"):
        verify(reader)


def test_mechanisms_and_internal_assets_open_private_data():
    verify(
        asset("records", SENSITIVE, required_resource_keys={"sensitive_store"}),
        asset(
            "histogram",
            RELEASED,
            ["records"],
            mechanism="laplace",
            required_resource_keys={"sensitive_store", "ledger"},
        ),
        asset("corpus", RELEASED, ["histogram"], required_resource_keys={"ledger"}),
        asset(
            "report", INTERNAL, ["corpus", "records"], required_resource_keys={"sensitive_store"}
        ),
    )


@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize("level", [PUBLIC, RELEASED])
def test_a_check_of_what_is_shown_opens_no_private_data(level, blocking):
    reads = check("copies", "corpus", ["sensitive_store"], blocking=blocking)
    with pytest.raises(PrivacyLineageError, match=r"copies of corpus .* <- sensitive_store"):
        verify(asset("corpus", level), checks=[reads])


def test_a_check_that_looks_at_private_records_beside_its_asset_is_refused():
    looks = check("copies", "corpus", additional_deps=["records"])
    with pytest.raises(PrivacyLineageError, match=r"copies of corpus .* <- records"):
        verify(asset("records", SENSITIVE), asset("corpus", RELEASED), checks=[looks])


def test_a_check_of_an_internal_asset_reads_what_it_likes_and_blocks_nothing():
    internal = asset("copied_spans", INTERNAL)
    verify(internal, checks=[check("copies", "copied_spans", ["sensitive_store"])])
    blocks = check("copies", "copied_spans", ["sensitive_store"], blocking=True)
    with pytest.raises(PrivacyLineageError, match=r"blocking check .* copied_spans"):
        verify(internal, checks=[blocks])


def test_no_asset_or_check_makes_a_store_of_its_own():
    """A store that is no resource would be read unseen; `finished` only removes files."""
    root = Path(dpsynth_assets.__file__).parent
    for path in [*root.glob("orchestration/assets/*.py"), root / "orchestration" / "checks.py"]:
        made = [
            node
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Call)
            and ast.unparse(node.func) in ("SensitiveStore", "SensitiveStore.at")
        ]
        assert not made or path.name == "keys.py", path
