"""`dpsynth run` materialises what its selection names, and asks before it pays."""

from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace

import dagster as dg
import pytest
import typer
from rich.console import Console

from dpsynth_assets.cli import run as run_module
from dpsynth_assets.cli.cohorts import find_cohort
from dpsynth_assets.cli.run import PendingRelease, pending_releases
from dpsynth_assets.cli.terminal import described
from dpsynth_assets.datasets import CohortSpec, DatasetFileError, PublicDataSpec
from dpsynth_assets.methods.dataset_plan import stage_request
from dpsynth_assets.methods.planning import plan_dataset
from dpsynth_assets.orchestration.assets.launch import ReleaseConfig, release_name
from dpsynth_assets.orchestration.instance import name_in_ledger, selected_assets
from dpsynth_assets.orchestration.resources.stores import PrivacyLedger
from dpsynth_assets.privacy.errors import BudgetExceededError, PrivacyError
from dpsynth_assets.tags import COHORT, LAUNCHED_BY, RELEASE
from dpsynth_assets_tests.assets.declared_cases import letters
from dpsynth_assets_tests.assets.test_schedules import spec_with
from dpsynth_assets_tests.declared import FIELDS, written

KEYS = {
    "letters/shared/cluster_histogram": (),
    "letters/mean_clustered/candidate_corpus": ("letters/shared/cluster_histogram", "base/text"),
    "letters/mean_clustered/corpus": ("letters/mean_clustered/candidate_corpus",),
    "base/text": (),
    "tickets/mean_clustered/corpus": ("base/text",),
}


pytestmark = pytest.mark.usefixtures("known_speed", "own_home")


@pytest.fixture(scope="module")
def graph():
    assets = [
        dg.asset(key=key.split("/"), deps=[dg.AssetKey(dep.split("/")) for dep in deps])(
            lambda: None
        )
        for key, deps in KEYS.items()
    ]
    return dg.Definitions(assets=assets).resolve_asset_graph()


REFUSED = {
    'key:"letters/mean_clusterd/corpus"': "got 'letters/mean_clusterd/corpus'",
    'key:"base/text" or key:"letters/shared/cluster_histogramm"': "'letters/shared/cluster_histog",
    "key:(": "",
    'key:"letters/*': "",
    "and": "",
    "++": "",
    'key:"base/text" and key:"letters/mean_clustered/corpus"': "selects none",
    "tag:none=none": "selects none",
    "*": "'tickets/mean_clustered/corpus'",
    'key:"tickets/*"': "'tickets/mean_clustered/corpus'",
    '+key:"*/corpus"': "'tickets/mean_clustered/corpus'",
}
"""Misspelt keys, what is no selection, what selects nothing, and another cohort's assets."""


@pytest.mark.parametrize(("selection", "told"), REFUSED.items())
def test_what_no_run_can_make_is_refused_in_a_line_with_near_names(graph, selection, told):
    with pytest.raises(typer.BadParameter) as raised:
        selected_assets(selection, letters(), graph)
    assert told in raised.value.message
    assert "\n" not in raised.value.message


@pytest.mark.parametrize(
    ("selection", "keys"),
    [
        ("", [key for key in KEYS if not key.startswith("tickets")]),
        ('key:"letters/mean_clustered/corpus"', ["letters/mean_clustered/corpus"]),
    ],
)
def test_no_selection_is_the_cohort_and_what_it_is_built_on(graph, selection, keys):
    found = selected_assets(selection, letters(), graph)
    assert sorted(key.to_user_string() for key in found) == sorted(keys)


def test_a_window_is_selected_by_its_own_name_or_its_datasets(graph):
    by_month = {"by": "window", "column": "created", "period": "month", "first": "2026-01-01"}
    window = CohortSpec.of(letters(cohorts=by_month), "2026_01")
    for name in ("letters_2026_01", "letters"):
        found = selected_assets(f'key:"{name}/shared/*"', window, graph)
        assert [key.path for key in found] == [["letters", "shared", "cluster_histogram"]]
        assert name_in_ledger(found[0], window) == [
            "letters_2026_01", "shared", "cluster_histogram"
        ]  # fmt: skip
    with pytest.raises(typer.BadParameter, match="letters_2026_02/shared"):
        selected_assets('key:"letters_2026_02/shared/*"', window, graph)


@pytest.mark.parametrize("selection", ["", " "])
def test_an_empty_selection_is_not_the_whole_cohort(selection):
    with pytest.raises(typer.BadParameter, match="got an empty one"):
        run_module.run("tickets", select=selection, yes=True)


@pytest.fixture
def declared(ledger):
    spec = spec_with(methods=[{"method": "mean_uniform"}])
    return spec, plan_dataset(spec), ledger


@pytest.fixture
def ask(monkeypatch, declared):
    """Asks a person, or a script where there is no terminal, to pay for one release."""

    def ask(*, terminal, yes=False, agrees=True):
        def confirm(*_, **__):
            if not agrees:
                raise typer.Abort

        monkeypatch.setattr(run_module.sys.stdin, "isatty", lambda: terminal, raising=False)
        monkeypatch.setattr(run_module.typer, "confirm", confirm)
        pending = [PendingRelease("letters/x", 1.25, 100)]
        monkeypatch.setattr(run_module, "pending_releases", lambda *_: pending)
        console = Console(record=True, width=160)
        agreed, tags = run_module._ask_before_paying(
            declared[0], {"letters/x"}, "", console, yes=yes
        )
        assert agreed == (None if yes else {"letters/x"})
        assert (tags[COHORT], tags[RELEASE]) == ("letters", "1")
        assert tags[LAUNCHED_BY].endswith("dpsynth run")
        return console.export_text()

    return ask


def test_a_person_sees_the_price_and_may_say_no_and_a_script_must_say_yes(ask):
    shown = ask(terminal=True)
    for told in ("letters/x", "1.25", "100 or more", "remains"):
        assert told in shown
    with pytest.raises(typer.Abort):
        ask(terminal=True, agrees=False)
    with pytest.raises(typer.BadParameter, match="--yes"):
        ask(terminal=False)
    assert "letters/x" in ask(terminal=False, yes=True)


def test_a_run_beyond_the_budget_is_refused_before_it_starts(declared, monkeypatch):
    spec, plan, ledger = declared
    assets = {each.asset for each in plan.releases}
    monkeypatch.setattr(PrivacyLedger, "open", lambda _self: ledger)
    console = Console(record=True, width=160)
    for number in range(spec.budget.rounds):
        name = f"release {number}"
        agreed, _ = run_module._ask_before_paying(spec, assets, name, console, yes=True)
        assert agreed is None
        for planned in plan.parts:
            for stage in planned.plan.stages:
                request = stage_request(spec, planned, stage, release=name)
                ledger.reserve(request, plan.budget, plan.releases)
    entries = len(ledger.entries())
    with pytest.raises(PrivacyError, match="would overspend cohort 'letters'") as refused:
        run_module._ask_before_paying(spec, assets, "one too many", console, yes=True)
    assert "No run was started" in str(refused.value)
    assert "\n" not in str(refused.value)
    assert described(refused.value)[1] == 2
    assert len(ledger.entries()) == entries
    run_module._ask_before_paying(spec, assets, "release 0", console, yes=True)  # paid before


def test_a_release_that_was_paid_for_is_not_asked_about_and_an_edited_one_is(declared):
    spec, plan, ledger = declared
    asset = plan.releases[-1].asset
    last = plan.methods[-1]
    made_from = {"public_language_model": "a model", "public_clusters": "clusters"}
    request = stage_request(spec, last, last.plan.stages[0], release="1", inputs=made_from)
    ledger.reserve(replace(request, release="of another name"), plan.budget, plan.releases)
    (pending,) = pending_releases(spec, {asset, "another/asset"}, "", ledger)
    assert (pending.asset, pending.again) == (asset, False)
    assert 0 < pending.epsilon <= spec.budget.epsilon
    assert pending_releases(spec, set(), "", ledger) == []
    assert pending_releases(spec, {asset}, "of another name", ledger) == []
    ledger.reserve(request, plan.budget, plan.releases)
    assert pending_releases(spec, {asset}, "", ledger) == []
    (named,) = pending_releases(spec, {asset}, "a new name", ledger)
    edited = spec_with(methods=[{"method": "mean_uniform", "settings": {"temperature": 0.9}}])
    (again,) = pending_releases(edited, {asset}, "", ledger)
    assert (named.again, again.again) == (False, True)
    console = Console(record=True, width=200)
    run_module.show_pending(edited, [again], ledger, console)
    assert f"{asset}: a release of this name was charged" in console.export_text()
    with suppress(BudgetExceededError):
        for name in range(99):
            ledger.reserve(replace(request, release=f"more {name}"), plan.budget, plan.releases)
    with pytest.raises(PrivacyError, match="would overspend") as refused:
        run_module._expect_room(edited, {asset}, "", ledger)
    told = str(refused.value)
    assert ("`temperature`" in told, "`inputs`" in told, "\n" in told) == (True, False, False)


def test_a_release_on_another_that_is_drawn_anew_is_asked_about(ledger, monkeypatch):
    spec = spec_with(methods=[{"method": "mean_clustered"}], cluster_histogram={})
    plan = plan_dataset(spec)
    (histogram, corpus), inputs = plan.releases, {"public_clusters": "clusters"}
    for part, asset in ((plan.histogram, histogram.asset), (plan.methods[0], corpus.asset)):
        request = stage_request(spec, part, part.plan.stages[0], release="1", inputs=inputs)
        assert request.asset == asset
        inputs["cluster_histogram"] = ledger.reserve(request, plan.budget, plan.releases).id
    both = {histogram.asset, corpus.asset}
    assert pending_releases(spec, both, "", ledger) == []
    real = run_module._is_paid
    monkeypatch.setattr(
        run_module, "_is_paid", lambda e, *rest: e.asset == corpus.asset and real(e, *rest)
    )
    pending = [each.asset for each in pending_releases(spec, both, "", ledger)]
    assert pending == [histogram.asset, corpus.asset]
    assert pending_releases(spec, {corpus.asset}, "", ledger) == []


def test_a_release_on_a_base_that_got_a_domain_is_asked_about_again(ledger, monkeypatch):
    spec = spec_with(methods=[{"method": "aug_pe"}], public_facts={})
    bases = [
        PublicDataSpec(name="demo", domain=domain, language_model={"kind": "smollm2"})
        for domain in ("", "Reviews of shops")
    ]
    old, new = (plan_dataset(spec, base) for base in bases)
    (method,) = old.methods
    (stage,) = [each for each in method.plan.stages if each.mechanism is not None]
    request = stage_request(spec, method, stage, release="1", inputs={"public_corpus": "x"})
    ledger.reserve(request, old.budget, old.releases)
    for plan, asked in ((old, []), (new, [request.asset])):
        monkeypatch.setattr(run_module, "plan_dataset", lambda *_, plan=plan: plan)
        pending = pending_releases(spec, {request.asset}, "", ledger)
        assert [each.asset for each in pending] == asked


def test_a_name_that_looks_like_another_is_refused_wherever_it_is_given():
    """Which names do is told in `run/test_runner.py`."""
    name = "r\u200b1"
    tagged = SimpleNamespace(run=SimpleNamespace(tags={RELEASE: name}))
    plain = SimpleNamespace(run=SimpleNamespace(tags={}))
    with pytest.raises(typer.BadParameter, match="a different name is a different") as raised:
        run_module.run("letters", release=name)
    assert raised.value.message.isprintable()
    for context, config in ((tagged, ReleaseConfig()), (plain, ReleaseConfig(release=name))):
        with pytest.raises(dg.Failure, match="invisible"):
            release_name(context, config)
    assert release_name(plain, ReleaseConfig(release="Frühling 2")) == "Frühling 2"


@pytest.mark.parametrize(("unknown", "told"), [(0, None), (2, "source.max_set_aside")])
def test_what_a_check_finds_is_said_before_anybody_is_asked_to_pay(
    tmp_path, monkeypatch, unknown, told
):
    rows = [f"The parcel of day {i} was late,{'x' if i >= unknown else 'X'}" for i in range(20)]
    (tmp_path / "rows.csv").write_text("\n".join(["text,label", *rows]))
    own = {
        "name": "parcels",
        "source": {"path": str(tmp_path / "rows.csv")},
        "columns": {"labels": ["label"]},
        "public_facts": {"labels": {"label": ["x"]}},
        "public_data": "english",
        "methods": [{"method": "aug_pe"}],
    }
    written(tmp_path / "parcels.yaml", FIELDS | own)
    monkeypatch.setenv("DPSYNTH_DATASETS", str(tmp_path))
    console = Console(record=True, width=400)
    spec = find_cohort("parcels")
    if told is None:
        run_module._expect_fit(spec, console)
        return
    with pytest.raises(DatasetFileError, match=told):
        run_module._expect_fit(spec, console)
    assert "2 rows set aside" in console.export_text()
