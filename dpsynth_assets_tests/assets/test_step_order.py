"""Laws of a run's order: first rows first, and what may hold them back stands before them.

About 10 s of CPU, most of it for the definitions of the shipped datasets.
"""

import dagster as dg
import pytest

from dpsynth_assets.attacks import audits
from dpsynth_assets.attacks.audits import save_results
from dpsynth_assets.orchestration.assets.automation import AFTER_CORPORA, PRIORITY, first_rows_first
from dpsynth_assets.paths import home
from dpsynth_assets_tests.assets.declared_cases import definitions_of, letters
from dpsynth_assets_tests.declared import audit_result


def test_the_first_corpus_of_a_shipped_dataset_waits_for_its_audits(graph):
    """Its steps are placed as those of the small graph below."""
    audits = [key for key in graph.get_all_asset_keys() if key.path[-1] == "mechanism_audits"]
    assert len(audits) == 5
    assert {graph.get(key).assets_def.op.tags[PRIORITY] for key in audits} == {"0"}


def asset(path, above=(), **options):
    @dg.asset(key=path.split("/"), deps=[dg.AssetKey(key.split("/")) for key in above], **options)
    def made(): ...

    return made


def check(path, name, *, blocking):
    @dg.asset_check(asset=dg.AssetKey(path.split("/")), name=name, blocking=blocking)
    def checked():
        return dg.AssetCheckResult(passed=True)

    return checked


def small_graph():
    """Two methods, of which the second begins with the cheaper step, and scores of nothing."""
    return first_rows_first(
        dg.Definitions(
            assets=[
                asset("public/base/shared"),
                asset("public/base/for_second"),
                asset("letters/evaluation/reference", op_tags={"other": "kept"}, pool="models"),
                asset("letters/second/stage", ["public/base/for_second"]),
                asset("letters/first/stage", ["public/base/shared"], pool="models"),
                asset("letters/first/candidate", ["letters/first/stage"]),
                asset("letters/first/corpus", ["letters/first/candidate"]),
                asset("letters/second/corpus", ["letters/second/stage", "public/base/shared"]),
                asset("letters/evaluation/report", ["letters/first/corpus"]),
            ],
            asset_checks=[
                check("letters/first/candidate", "gate", blocking=True),
                check("letters/first/stage", "shown", blocking=False),
                check("letters/first/corpus", "card", blocking=True),
            ],
        )
    )


def test_steps_run_in_the_order_of_the_corpora_that_wait_for_them():
    result = small_graph().resolve_implicit_global_asset_job_def().execute_in_process()
    started = [event.step_key for event in result.all_events if event.is_step_start]
    assert started == [
        "public__base__shared",
        "letters__first__stage",
        "letters__first__candidate",
        "letters__first__candidate_gate",
        "letters__first__corpus",
        "letters__first__corpus_card",
        "public__base__for_second",
        "letters__second__stage",
        "letters__second__corpus",
        "letters__evaluation__reference",
        "letters__first__stage_shown",
        "letters__evaluation__report",
    ]


def test_an_op_keeps_its_tags_and_its_pool():
    graph = small_graph()
    (op,) = [each.op for each in graph.assets if each.op.name == "letters__evaluation__reference"]
    assert (op.tags, op.pool) == ({"other": "kept", PRIORITY: str(AFTER_CORPORA)}, "models")


# Audits that fail


def run_with(monkeypatch, tmp_path, passed, extra=()):
    """Runs audits that pass but for one, and the corpus that waits for them; returns its steps."""
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(
        audits,
        "run_audits",
        lambda chosen, report: [
            audit_result(each.name, passed=passed or place > 0) for place, each in enumerate(chosen)
        ],
    )
    save_results(home().audits, extra)
    job = first_rows_first(definitions_of(letters())).resolve_implicit_global_asset_job_def()
    asked = (["audit", "mechanism_audits"], ["mean_uniform", "corpus"])
    result = job.execute_in_process(
        asset_selection=[dg.AssetKey(["letters", *path]) for path in asked], raise_on_error=False
    )
    return [event.step_key for event in result.all_events if event.is_step_start]


CORPUS = "letters__mean_uniform__corpus"
OTHER = audit_result("dp-sgd-poisson", passed=False)
"""Another dataset may pay from the same account, and its methods stay in that account's ε."""


@pytest.mark.parametrize(
    ("passed", "extra", "begins"), [(False, [], False), (True, [OTHER], False), (True, [], True)]
)
def test_a_corpus_begins_where_no_audit_of_any_mechanism_here_failed(
    monkeypatch, tmp_path, passed, extra, begins
):
    assert (CORPUS in run_with(monkeypatch, tmp_path, passed=passed, extra=extra)) is begins
    assert not (tmp_path / "home" / "released").exists()
