"""The terminal: examples that parse, help and overview that open without heavy libraries."""

import json
import shlex
from dataclasses import replace

import pytest
from typer.main import get_command

from dpsynth_assets.cli.cohorts import find_cohort
from dpsynth_assets.cli.main import ENTRIES, EXAMPLES, app
from dpsynth_assets.methods.dataset_plan import stage_request
from dpsynth_assets.methods.planning import plan_dataset
from dpsynth_assets.privacy.ledger import Ledger
from dpsynth_assets_tests.assets.test_definitions import HEAVY
from dpsynth_assets_tests.children import dpsynth, python

SCREEN = {"COLUMNS": "100"}


def walked(command, path):
    """Every command that does something, by its path."""
    below = getattr(command, "commands", {})
    if not below:
        yield path, command
    for name, each in below.items():
        yield from walked(each, f"{path} {name}")


COMMANDS = dict(
    found for name, entry in ENTRIES.items() for found in walked(entry.load(name), name)
)


pytestmark = pytest.mark.usefixtures("own_home")


def said(*words):
    return dpsynth(*words, env=SCREEN)


def opened(*words, **environment):
    """Runs `dpsynth` in a process of its own; returns its last line: the heavy modules it took."""
    code = (
        "import json, sys\n"
        "from dpsynth_assets.cli.main import main\n"
        "try:\n    main()\n"
        "except SystemExit:\n    pass\n"
        f"print(json.dumps(sorted(set({(*HEAVY, 'dagster', 'polars')!r}) & set(sys.modules))))"
    )
    return json.loads(python("-c", code, *words, **environment).splitlines()[-1])


def test_every_command_has_examples_and_every_example_a_command():
    assert set(EXAMPLES) == set(COMMANDS)


@pytest.mark.parametrize("path", sorted(EXAMPLES))
def test_examples_parse(path, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    root = get_command(app)
    for example in EXAMPLES[path]:
        program, *words = shlex.split(example)
        assert program == "dpsynth"
        context = root.make_context("dpsynth", list(words))
        rest = [*context._protected_args, *context.args]
        command = root
        while hasattr(command, "commands"):
            name, command, rest = command.resolve_command(context, rest)
            context = command.make_context(name, rest, parent=context)
            rest = [*context._protected_args, *context.args]
        assert command.name == COMMANDS[path].name


def test_the_version_is_that_of_the_package():
    from importlib.metadata import version

    assert said("--version").output == f"dpsynth {version('dpsynth_assets')}\n"


@pytest.mark.parametrize("words", [(), ("--help",), ("--version",)])
def test_what_comes_before_a_command_imports_nothing_heavy(words):
    assert opened(*words) == []


def completed(line):
    """What the shell offers for the last word of a line."""
    return python(
        *("-c", "from dpsynth_assets.cli.main import app; app(prog_name='dpsynth')"),
        COMP_WORDS=line,
        COMP_CWORD=str(line.count(" ")),
        _DPSYNTH_COMPLETE="complete_bash",
    ).split()


def test_the_shell_completes_commands_and_cohorts():
    assert completed("dpsynth le") == ["leak-scan", "ledger"]
    assert completed("dpsynth plan ti") == ["tickets"]


def row_of_tickets(told):
    """The cells of the cohort's row in the overview."""
    assert told.exit_code == 0, told.output
    (row,) = [line for line in told.output.splitlines() if line.startswith("│ tickets")]
    return [cell.strip() for cell in row.strip("│").split("│")]


def test_the_overview_says_where_it_works_and_what_comes_next(tmp_path):
    told = said()
    assert f"home: {tmp_path / 'home'} (does not exist yet)" in told.output
    cells = ["tickets", "0", "15", "15", "0", "dpsynth plan tickets"]  # No result is known yet.
    assert row_of_tickets(told) == cells
    assert len(told.output.splitlines()) <= 24
    assert not (tmp_path / "home").exists()  # Looking creates nothing.


def charge_histogram(tmp_path, **terms):
    """Charges one release of `tickets`, under other terms than its file's where they are given."""
    found = find_cohort("tickets")
    ledger_file = tmp_path / "home" / "ledger" / "ledger.sqlite"
    ledger_file.parent.mkdir(parents=True)
    plan = plan_dataset(found)
    histogram = plan.histogram
    request = stage_request(found, histogram, histogram.plan.stages[0], release="1")
    charged = replace(plan.budget, **terms)
    Ledger(f"sqlite:///{ledger_file}").reserve(request, charged, plan.releases)


@pytest.mark.parametrize("terms", [{}, {"delta": 0.5e-6}], ids=["as declared", "delta edited"])
def test_the_overview_reads_the_ledger_and_what_was_published(tmp_path, terms):
    """A cohort whose δ was edited since is told under the terms it was charged under."""
    charge_histogram(tmp_path, **terms)
    _, spent, left, *_, command = row_of_tickets(said())
    assert 0 < float(spent) < 15
    assert float(spent) + float(left) == pytest.approx(15, abs=0.01)
    assert command == "dpsynth run tickets"
    (tmp_path / "home" / "released" / "tickets" / "mean_uniform" / "data").mkdir(parents=True)
    assert row_of_tickets(said())[-1] == "dpsynth report tickets"


def test_the_doctor_reports_problems_and_shows_names_of_variables_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("DPSYNTH_PUBLISH_URL", "s3://hidden-bucket/there")
    monkeypatch.setenv("DPSYNTH_STORE_URL", "hiddenhost:5432/hiddenbase")
    url = "postgresql+psycopg2://hiddenuser:x@127.0.0.1:1/hiddenbase?sslpassword=hiddenword"
    monkeypatch.setenv("DPSYNTH_LEDGER_URL", url)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / ".format").write_text("0")
    told = said("doctor")
    assert told.exit_code == 1
    assert "another format than 1" in told.output
    assert "publish s3" in told.output
    assert "DPSYNTH_PUBLISH_URL" in told.output
    assert "ledger: problem: " in told.output
    assert not [word for word in ("hidden", "127.0.0.1", str(tmp_path)) if word in told.output]
