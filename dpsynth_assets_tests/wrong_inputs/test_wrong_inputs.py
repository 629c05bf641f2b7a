"""Wrong input of every kind ends with a line and exit code 2: nothing charged, nothing left behind.

Each case is one thing that people or attackers really hand to a command.
"""

import copy
import math
import os

import polars as pl
import pytest

from dpsynth_assets.privacy.ledger import Ledger
from dpsynth_assets_tests.children import dpsynth, python
from dpsynth_assets_tests.declared import written
from dpsynth_assets_tests.prepared import keep_demo_plans

SECRET = "Zaphod has gout"
HEADER = "id,text,label\n"
ROWS = "".join(f"a{i},hello {i} {SECRET},Support\n" for i in range(30))
ATTRIBUTES = {
    "name": "hostile",
    "public_data": "demo",
    "source": {"path": "d.csv"},
    "columns": {"id": "id", "text": "text", "labels": ["label"]},
    "public_facts": {"labels": {"label": ["Accounts", "Support"]}},
    "budget": {"epsilon": 95.0, "delta": 1e-6},
    "methods": [{"method": "mean_uniform"}],
}

FIELDS = {
    "epsilon no number": ("budget.epsilon", math.nan),
    "name of another script": ("name", "tickéts"),
    "source climbs out": ("source.path", "../../etc/passwd"),
    "source a device": ("source.path", "/dev/zero"),
    "source a device as CSV": ("source", {"path": "/dev/zero", "format": "csv"}),
    "source an address": ("source.path", "http://127.0.0.1:9/x.csv"),
    "source a bucket": ("source.path", "s3://nobody/x.parquet"),
    "source an empty folder": ("source.path", "/proc/self/fdinfo"),
    "text column misspelt": ("columns.text", "txet"),
    "records not those": ("public_facts.records", 900),
    "records huge": ("public_facts.records", 10**400),
    "method named shared": ("methods", [{"method": "mean_uniform", "name": "shared"}]),
    "setting unknown": ("methods", [{"method": "mean_uniform", "settings": {"clip_bund": 3}}]),
    "name of the public bases": ("name", "public"),
    "name of a folder of the home": ("name", "releases"),
}

COMMANDS = {
    "no such command": ["pln"],
    "no such option": ["plan", "tickets", "--al"],
    "plan of a null byte": ["plan", "a\x00b"],
    "run of a stranger": ["run", "tickts", "--yes"],
    "audit used-by a stranger": ["audit", "used-by", "tickts", "7"],
    "audit of no audit": ["audit", "run", "--only", "nothing"],
    "check of a device": ["datasets", "check", "/dev/null/x"],
    "leak-scan without a file": ["leak-scan", "--canaries", "/nowhere"],
    "ledger accept without a reason": ["ledger", "accept", "--because", " "],
    "ledger accept of nothing lost": ["ledger", "accept", "--because", "x"],
    "ledger restore of nothing": ["ledger", "restore", "/nowhere", "--because", "x"],
    "init of nothing": ["init", "/nowhere.csv"],
}


@pytest.fixture
def place(own_home, tmp_path, tmp_path_factory, monkeypatch):
    """A working folder, and a home in which nothing was paid, whose demo was planned."""
    keep_demo_plans(tmp_path_factory, own_home)
    monkeypatch.setenv("DAGSTER_HOME", str(own_home / "dagster"))
    monkeypatch.setenv("HF_TOKEN", "hf_" + SECRET)
    monkeypatch.setenv("COLUMNS", "400")
    work = tmp_path / "work"
    work.mkdir()
    return work


def declared(place, source="d.csv", field=None, value=None, file="x.yaml", **changes):
    attributes = copy.deepcopy(ATTRIBUTES) | changes
    attributes["source"]["path"] = str(place / source)
    if field is not None:
        *parents, last = field.split(".")
        here = attributes
        for parent in parents:
            here = here.setdefault(parent, {})
        here[last] = value
    return written(place / file, attributes)


def refused(place, arguments, code=2):
    """Runs a command that must be refused; returns what it said."""
    before = sorted(place.rglob("*"))
    result = dpsynth(*arguments)
    assert isinstance(result.exception, SystemExit), repr(result.exception)
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    assert "gout" not in result.output
    assert sorted(place.rglob("*")) == before, "something was left behind"
    assert not charged(place.parent / "home" / "ledger" / "ledger.sqlite")
    return [line for line in result.output.splitlines() if line.strip()]


def charged(ledger):
    """The entries of a ledger; none where there is no ledger."""
    return ledger.exists() and Ledger(f"sqlite:///{ledger}").entries()


def test_a_wrong_field_is_a_line_with_file_and_remedy(place):
    (place / "d.csv").write_text(HEADER + ROWS)
    files = [
        declared(place, field=field, value=value, file=f"{n}.yaml", name=f"hostile_{n}")
        for n, (field, value) in enumerate(FIELDS.values())
    ]
    *lines, total = refused(place, ["datasets", "check", *files])
    assert "errors" in total
    assert all("expected" in line for line in lines), lines
    places = [line.partition(":")[0] for line in lines]
    assert {*places} == {*map(str, files)}


@pytest.mark.parametrize("case", COMMANDS)
def test_a_wrong_command_is_one_line(place, case):
    lines = refused(place, COMMANDS[case])
    told = [line for line in lines if not line.startswith("1 files, ")]
    assert len(told) == 1, lines


@pytest.mark.usefixtures("known_speed")
def test_a_run_that_nobody_agreed_to_ends_with_the_price_and_a_line(place):
    *_, last = refused(place, ["run", "tickets"])
    assert "Add --yes to pay" in last


def test_a_pipe_as_a_source_is_a_line_and_not_a_wait(place):
    os.mkfifo(place / "d.csv")
    lines = refused(place, ["datasets", "check", declared(place)])
    assert any("a pipe" in line for line in lines)


def test_a_parquet_file_that_unpacks_to_gigabytes_is_a_line(place):
    rows = 300_000
    texts = pl.Series("text", ["x" * 2000]).cast(pl.Categorical)
    frame = pl.DataFrame({"text": texts}).select(pl.col("text").repeat_by(rows).explode())
    frame.with_columns(id=pl.lit("i"), label=pl.lit("Support")).write_parquet(place / "d.parquet")
    assert (place / "d.parquet").stat().st_size < 1 << 20
    lines = refused(place, ["datasets", "check", declared(place, "d.parquet")])
    assert any("unpacks to" in line for line in lines), lines


def test_the_real_command_ends_the_same(place):
    program = "from dpsynth_assets.cli.main import main; main()"
    assert python("-c", program, "plan", "tickts", where=place, code=2) == ""
