"""Progress reaches the terminal at every step and the log now and then, with an honest estimate."""

from types import SimpleNamespace

import dagster as dg
import pytest

from dpsynth_assets.orchestration.resources import progress as module
from dpsynth_assets.orchestration.resources.progress import Progress, show_in_terminal


@pytest.fixture
def lines():
    return []


@pytest.fixture
def context(lines):
    log = SimpleNamespace(info=lambda form, *values: lines.append(form % values))
    return SimpleNamespace(log=log)


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def test_the_log_tells_begin_and_end_and_time_left_once_there_is_something_to_go_by(
    context, lines, clock
):
    report = Progress().start(context, "work")
    steps = [(0, 0.0, "budget ε 1.00 of 4 reserved"), (1, 0.0, "too soon"), (20, 0.01, "early")]
    for seconds, share, message in [*steps, (40, 0.5, "half"), (41, 1.0, "all")]:
        clock[0] = 100.0 + seconds
        report(share, message)
    assert lines == [
        "work: budget ε 1.00 of 4 reserved",
        "work: early",
        "work: 50% half, about 40 s left",
        "work: 100% all, took 41 s",
    ]


@pytest.mark.parametrize("records", [130, 147, 159])
def test_the_log_does_not_tell_how_many_records_a_share_is_of(context, lines, clock, records):
    report = Progress().start(context, "work")
    report(16 / records, "reading")
    assert lines == ["work: 10% reading, about 0 s left"]


def test_the_time_left_never_grows_while_the_share_stays_in_its_step(context, lines, clock):
    report = Progress().start(context, "work")
    for minutes, share in ((40, 0.05), (20, 0.06), (20, 0.09), (40, 0.10)):
        clock[0] += 60 * minutes
        report(share, "")
    assert lines == [
        "work: 5%, about 12 h 40 min left",
        "work: 5%, about 12 h 20 min left",
        "work: 5%, about 12 h left",
        "work: 10%, about 18 h left",
    ]


def test_the_log_counts_the_steps_of_the_run():
    @dg.asset
    def first() -> None: ...

    @dg.asset(deps=[first])
    def second(context: dg.AssetExecutionContext, progress: Progress) -> None:
        progress.start(context, "work")(0.0, "begins")

    with dg.DagsterInstance.ephemeral() as instance:
        run = dg.materialize([first, second], resources={"progress": Progress()}, instance=instance)
        told = [record.user_message for record in instance.all_logs(run.run_id)]
    assert "Step 2 of 2: work: begins" in told


def test_terminal_bar_sees_every_step(context, clock, monkeypatch):
    seen = []
    monkeypatch.setattr(module, "_terminal_bar", [])
    show_in_terminal(lambda title: lambda share, message: seen.append((title, share)))
    report = Progress().start(context, "work")
    for share in (0.1, 0.2, 0.3):
        report(share, "")
    assert seen == [("work", 0.1), ("work", 0.2), ("work", 0.3)]
