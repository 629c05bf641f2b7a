"""`dpsynth plan`: fits a screen, a line for each refusal, and exit code 2 where there is one."""

import json
import os
import shutil

import polars as pl
import pytest

from dpsynth_assets.models.transformers_decoder import memory
from dpsynth_assets.paths import home
from dpsynth_assets.public_base import PublicBase
from dpsynth_assets_tests.children import dpsynth
from dpsynth_assets_tests.declared import FIELDS, written

SCREEN = {"COLUMNS": "100"}
BUDGET = {"epsilon": 4.0, "delta": 1e-6}


@pytest.fixture
def folder(own_datasets, known_speed):
    """A home, and a machine whose speed is known: none is tried."""
    return own_datasets


SMOLLM2 = {"kind": "smollm2"}


def declare(folder, *methods, language_model=SMOLLM2, domain="", **changes):
    base = {"name": "words", "language_model": language_model, "domain": domain}
    written(folder / "words.yaml", base, "PublicData")
    cohort = {
        "name": "notes",
        "public_facts": {"records": 20_000},
        "budget": {"epsilon": 10.0, "delta": 1e-6},
        "public_data": "words",
        "cluster_histogram": {},
        "methods": list(methods),
    }
    written(folder / "notes.yaml", FIELDS | cohort | changes)


def plan(*options):
    return dpsynth("plan", *options, env=SCREEN)


@pytest.mark.usefixtures("folder")
def test_a_new_home_is_its_owners_alone_whatever_the_umask():
    before = os.umask(0)
    try:
        PublicBase(pl.DataFrame({"text": ["a"]}))  # From Python: the home shuts others out.
        assert home().root.stat().st_mode & 0o077 == 0
        shutil.rmtree(home().root)
        assert plan("feedback").exit_code == 0
    finally:
        os.umask(before)
    written = [home().root, *home().root.rglob("*")]
    assert home().plans in written
    assert [path for path in written if path.stat().st_mode & 0o077] == []


def test_a_plan_fits_a_screen_and_refuses_other_methods_in_a_line_each_where_asked(folder):
    told = plan("tickets").output
    assert len(told.splitlines()) <= 24
    assert "refused:" not in told
    lines = plan("tickets", "--all").output.splitlines()
    for name in ("ctcl", "secpe"):
        assert len([line for line in lines if line.startswith(f"{name} refused: Expected")]) == 1


def test_a_refused_method_is_a_line_and_exit_code_2(folder):
    declare(
        folder,
        {"method": "mean_uniform", "settings": {"clip_bound": 6.0}},
        {"method": "mean_clustered", "settings": {"public_top_k": None}},
    )
    told = plan("notes")
    assert told.exit_code == 2
    (line,) = [line for line in told.output.splitlines() if "refused:" in line]
    assert line.startswith("mean_clustered refused: Expected a tail of at most 10%")
    assert "public_top_k: 100" in line
    facts = json.loads(plan("notes", "--json").output)
    uniform, clustered = facts["releases"][1:]
    assert uniform["tail"]["typical"] < 0.01
    assert clustered["tail"]["tokens"] == 49_152


@pytest.mark.parametrize(("std", "rounds", "kind"), [(1, 1, "refusals"), (2, 3, "warnings")])
def test_a_round_above_the_budget_is_refused_and_later_rounds_are_warned_of(
    folder, std, rounds, kind
):
    histogram, budget = {"noise_std": std}, BUDGET | {"rounds": rounds}
    method = {"method": "epsvec", "budget_share": 0.5}
    declare(folder, method, topic_histogram=histogram, budget=budget)
    told = plan("notes", "--json")
    facts = json.loads(told.stdout)
    assert told.exit_code == (2 if kind == "refusals" else 0)
    (line,) = facts["refusals"] + facts["warnings"]
    assert facts[kind] == [line]
    assert "budget.epsilon: expected releases that cost at most 4 together, got " in line
    (topics,) = [row for row in facts["releases"] if row["release"] == "shared/topic_histogram"]
    assert topics["noise"] == f"discrete Gaussian of standard deviation {std} records"
    assert topics["target_epsilon"] == topics["epsilon"]


# Minutes


@pytest.mark.usefixtures("folder")
def test_memory_of_a_pass_is_stated_with_what_fits_on_this_machine(folder, toy_folder, monkeypatch):
    settings = {"expected_batch_size": 512, "batches_per_forward": 2}
    method = {"method": "mean_uniform", "settings": settings}
    model = {"kind": "pretrained", "model": str(toy_folder), "device": "cpu"}
    declare(folder, method, language_model=model)
    (taken,) = json.loads(plan("notes", "--json").stdout)["memory"].values()
    assert 1024 < taken["rows"] == taken["rows_that_fit"] < 1300
    assert taken["cache_bytes"] < taken["peak_bytes"] < taken["room_bytes"]
    monkeypatch.setattr(memory, "room_on", lambda *_: taken["peak_bytes"] // 4)
    (less,) = json.loads(plan("notes", "--json").stdout)["memory"].values()
    assert less["rows_that_fit"] < taken["rows"] / 3
    told = " ".join(plan("notes").output.split())
    assert f"{less['rows_that_fit']} contexts: a run here would be refused" in told
    declare(folder, method, language_model=model | {"device": "cuda:0"})
    assert "what fits there is not known" in " ".join(plan("notes").output.split())


def test_low_precision_is_refused_until_it_was_measured(folder, toy_folder):
    method = {"method": "mean_uniform", "settings": {"logit_slack": 0.3}}
    model = {"kind": "pretrained", "model": str(toy_folder), "dtype": "bfloat16"}
    declare(folder, method, language_model=model)
    told = plan("notes")
    assert told.exit_code == 2
    assert "Run dpsynth audit run notes here" in " ".join(told.output.split())


@pytest.mark.usefixtures("own_home", "known_speed")
def test_minutes_stand_beside_every_method_and_for_the_whole_run():
    facts = json.loads(plan("enquiries", "--json").output)
    assert all(row["minutes"] > 0 for row in facts["releases"])
    assert facts["minutes"] > sum(row["minutes"] for row in facts["releases"])
    assert f"takes about {facts['minutes']:.0f} minutes on" in plan("enquiries").output


def test_prompts_can_be_read_by_label_before_anything_is_priced(folder):
    declare(folder, {"method": "aug_pe"})
    assert "document format" in plan("notes", "--prompts").output
    labels = {
        "columns": {"labels": ["kind"]},
        "public_facts": {"labels": {"kind": {"ADM": "admission", "2": "discharge"}}},
    }
    declare(folder, {"method": "aug_pe"}, domain="Notes of nurses", **labels)
    first, second = json.loads(plan("notes", "--prompts", "--json").output)
    assert (first["label"], second["label"]) == ("ADM", "2")
    assert "Notes of nurses" in first["instruction"]
    assert first["public_prompt"].endswith('admission: "')
    assert '"<a record>"' in second["private_prompt"]
    assert "discharge" in plan("notes", "--prompts").output
