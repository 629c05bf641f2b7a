"""`dpsynth key` and `dpsynth approve`, with a dataset file that asks for approvals."""

from functools import partial

import pytest

from dpsynth_assets.datasets import parse_dataset_file
from dpsynth_assets.methods.planning import plan_dataset
from dpsynth_assets.orchestration.assets.launch import refusal_of
from dpsynth_assets.orchestration.resources.stores import PrivacyLedger
from dpsynth_assets_tests.children import dpsynth
from dpsynth_assets_tests.declared import FIELDS, written

said = partial(dpsynth, code=0)


@pytest.fixture
def person(tmp_path, own_datasets, monkeypatch):
    """Becomes a person of this installation, who has a key."""
    return lambda name: monkeypatch.setenv("DPSYNTH_SIGNING_KEY", str(tmp_path / name))


@pytest.fixture
def asked(tmp_path, person):
    """Fields of a dataset file that asks for two approvals, by keys that were made for it."""
    keys = []
    for name in ("ben", "cem"):
        person(name)
        keys.append(said("key").stdout.strip())
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600
        assert said("key").stdout.strip() == keys[-1]
    (tmp_path / "reviews.csv").write_text("text\na letter\n")
    return {
        **FIELDS,
        "source": {"path": str(tmp_path / "reviews.csv")},
        "budget": {"epsilon": 60.0, "delta": 1e-6},
        "cluster_histogram": {},
        "approvals": 2,
        "approvers": keys,
    }


def test_a_cohort_is_paid_for_once_others_have_approved_its_file(own_datasets, person, asked):
    file = own_datasets / "reviews.yaml"
    unasked = {name: value for name, value in asked.items() if not name.startswith("approv")}

    def refusal(changes):
        spec = parse_dataset_file(written(file, changes))[0][0].spec
        plan = plan_dataset(spec)
        return refusal_of(spec, plan, plan.parts, PrivacyLedger().open(), "1")

    person("ann")
    said("key")
    assert "got 0" in refusal(asked)
    assert "Expected a key among the approvers" in said("approve", "reviews", code=2).output
    for name in ("ben", "cem"):
        person(name)
        told = said("approve", "reviews", "--yes").stdout
    assert "It has 2 of 2 approvals" in told
    assert "got 1" in refusal(asked)
    person("ann")
    assert refusal(asked) is None
    assert "got 0" in refusal({**asked, "description": "Letters."})
    assert "as they stand in the ledger" in refusal(unasked)
    said("approve", "nobody", code=2)


def test_an_approver_sees_what_is_signed_and_what_was_edited(own_datasets, person, asked):
    file = written(own_datasets / "reviews.yaml", asked)
    person("cem")
    first = said("approve", "reviews", "--yes").stderr
    for told in ("one record", "add-remove", "ε = 60", "δ = 1e-06", "2 of 2 approvals"):
        assert told in first
    assert "reviews/mean_uniform" in first
    assert "method: mean_uniform" in first
    person("ben")
    said("approve", "reviews", "--yes")
    lowered = asked | {"approvals": 1, "approvers": asked["approvers"][1:], "description": "Old."}
    written(file, lowered | {"budget": {"epsilon": 70.0, "delta": 1e-6}})
    told = dpsynth("approve", "reviews", input="n\n", env={"COLUMNS": "200"})
    rows = {line.split("│")[1].strip(): line for line in told.stderr.splitlines() if "│" in line}
    assert "ε = 70" in rows["epsilon"]
    assert "ε = 60" in rows["epsilon"]
    assert "the same" in rows["delta"]
    assert "the same" not in rows["dataset file"]
    assert "LOWERS the required approvals: from 2 of 2" in told.stderr
    assert len(PrivacyLedger().open().entries()) == 2
