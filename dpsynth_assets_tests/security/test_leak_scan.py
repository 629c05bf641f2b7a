"""The leak scan finds a canary wherever software may have put it; the whole graph leaks none."""

import base64
import gzip
import json
import sqlite3
import zipfile
import zlib

import numpy as np
import polars as pl
import pytest

from dpsynth_assets.attacks import leak_scan
from dpsynth_assets.attacks.leak_scan import Needles, scan_folders
from dpsynth_assets.methods.registry import REGISTRY
from dpsynth_assets_tests.children import dpsynth
from dpsynth_assets_tests.prepared import keep_demo_plans
from dpsynth_assets_tests.security.leak_planting import Planted, private_cohort, secret_cohort
from dpsynth_assets_tests.security.leak_rehearsal import BREAKING, rehearse

CANARY = 'Zäph"od-QX7Q4Z9W'
OTHERS = [f"KV{number:06}WQXZ" for number in range(500)]


def in_sqlite(value):
    def write(folder):
        with sqlite3.connect(folder / "a.db") as connection:
            connection.execute('CREATE TABLE "odd ""name" (x)')
            connection.execute('INSERT INTO "odd ""name" VALUES (?)', (value,))

    return write


def across_pages(folder):
    """A value longer than a page: its bytes in the file are not in one piece."""
    for tail in range(8155, 8190, 4):
        (folder / "a.db").unlink(missing_ok=True)
        in_sqlite("x" * 2000 + CANARY + "y" * tail)(folder)
        if RAW not in (folder / "a.db").read_bytes():
            return
    pytest.fail("expected one of these values to be split between two pages")


def in_file(content):
    return lambda folder: (folder / "a.bin").write_bytes(content)


def in_zip(folder):
    with zipfile.ZipFile(folder / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("inner.gz", gzip.compress(b"x" * 100 + CANARY.encode()))


def in_parquet(*values):
    frame = pl.DataFrame({"x": values})
    return lambda folder: frame.write_parquet(folder / "a.parquet", compression="zstd")


def in_name(folder):
    (folder / CANARY).mkdir()
    (folder / CANARY / "empty").touch()


RAW = CANARY.encode()
PLACES = {
    "as it is": in_file(b"before" + RAW + b"after"),
    "lower case": in_file(CANARY.lower().encode()),
    "JSON": in_file(json.dumps({"text": CANARY}).encode()),
    "JSON in JSON": in_file(json.dumps(json.dumps([CANARY])).encode()),
    "UTF-16": in_file(CANARY.encode("utf-16")),
    "NumPy text": lambda folder: np.save(folder / "a.npy", np.array([CANARY])),
    "hexadecimal": in_file(RAW.hex().encode()),
    "base64, first place": in_file(base64.b64encode(b"abc" + RAW + b"tail")),
    "base64, second place": in_file(base64.b64encode(b"abcd" + RAW + b"tail")),
    "base64, third place": in_file(base64.b64encode(b"abcde" + RAW + b"tail")),
    "URL": in_file(b"http://x/?q=Z%C3%A4ph%22od-QX7Q4Z9W"),
    "HTML": in_file("<p>Zäph&quot;od-QX7Q4Z9W</p>".encode()),
    "database": in_sqlite(CANARY),
    "database, across pages": across_pages,
    "database, compressed": in_sqlite(zlib.compress(RAW * 3)),
    "gzip": in_file(gzip.compress(b"x" * 1000 + RAW)),
    "second member of a gzip file": in_file(gzip.compress(b"a") + gzip.compress(RAW)),
    "archive in an archive": in_zip,
    "Parquet, nested": in_parquet(["a", CANARY], ["b"]),
    "Parquet, bytes": in_parquet(RAW),
    "name of a file": in_name,
}


@pytest.mark.parametrize("place", PLACES)
def test_a_canary_is_found_wherever_it_was_put(tmp_path, place):
    PLACES[place](tmp_path)
    report = scan_folders([tmp_path], [*OTHERS, CANARY])
    assert {leak.canaries for leak in report.leaks} == {1}
    assert not report.unread
    assert not report.clean


def test_a_clean_folder_is_clean_and_its_bytes_are_counted(tmp_path):
    (tmp_path / "a").write_bytes(bytes(10_000))
    report = scan_folders([tmp_path], [CANARY])
    assert report.clean
    assert report.files == 1
    assert report.bytes_searched >= 10_000


def test_a_canary_across_two_blocks_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(leak_scan, "_BLOCK_BYTES", 64)
    for before in range(120):
        (tmp_path / "a").write_bytes(b"." * before + RAW + b"." * 40)
        assert [leak.canaries for leak in scan_folders([tmp_path], [CANARY]).leaks] == [1]


def test_thousands_of_canaries_are_all_told_apart():
    needles = Needles(OTHERS)
    (found,) = needles.find([" ".join(OTHERS[::2]).encode()])
    assert {number for number, _ in found} == set(range(0, len(OTHERS), 2))


def test_neither_report_nor_repr_shows_a_canary(tmp_path):
    (tmp_path / "a").write_bytes(RAW)
    report = scan_folders([tmp_path], [CANARY])
    assert CANARY not in repr(report)
    assert CANARY not in repr(Needles([CANARY]))


def test_a_short_canary_is_refused_and_not_shown():
    with pytest.raises(ValueError, match="at least 8 bytes") as caught:
        Needles(["Zaphod"])
    assert "Zaphod" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (gzip.compress(RAW)[:-12], None),
        (b"PK\x03\x04 but no archive", "cannot be opened"),
        (b"PAR1 but no table", "cannot be opened"),
        (b"SQLite format 3\0 but no database", "cannot be read"),
        (gzip.compress(bytes(5000)), "unpacks to more"),
    ],
    # named, for a gzip header holds the second it was written in
    ids=["cut gzip", "no zip", "no Parquet", "no SQLite", "large gzip"],
)
def test_what_cannot_be_unpacked_is_no_clean_bill(tmp_path, monkeypatch, content, reason):
    monkeypatch.setattr(leak_scan, "MAXIMUM_UNPACKED_BYTES", 1000)
    (tmp_path / "a").write_bytes(content)
    report = scan_folders([tmp_path], [CANARY])
    assert not report.clean
    assert reason is None or reason in report.unread[0]


def test_the_sensitive_store_is_left_out_and_nothing_else(tmp_path):
    for folder in ("sensitive", "sensitive2"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a").write_bytes(RAW)
    report = scan_folders([tmp_path], [CANARY], exclude=[tmp_path / "sensitive"])
    assert [leak.path for leak in report.leaks] == [str(tmp_path / "sensitive2" / "a")]


def test_the_command_fails_where_it_finds_something(tmp_path, monkeypatch, own_home):
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    (tmp_path / "home" / "dagster").mkdir(parents=True)
    (tmp_path / "canaries.txt").write_text(CANARY + "\n")
    arguments = ["leak-scan", "--canaries", str(tmp_path / "canaries.txt")]
    assert dpsynth(*arguments).exit_code == 0
    (tmp_path / "home" / "dagster" / "event.log").write_bytes(RAW)
    found = dpsynth(*arguments, code=1)
    assert "event.log: 1 canaries" in found.stderr
    assert dpsynth("leak-scan").exit_code == 2


@pytest.mark.parametrize("shown", ["0", "1"])
def test_an_error_that_quotes_a_record_is_found_in_the_event_log_where_it_is_let_through(
    tmp_path, monkeypatch, shown
):
    """The scan would notice if private sections did not withhold what errors say."""
    import dagster as dg

    from dpsynth_assets.orchestration.resources.private_section import private_section

    @dg.asset
    def reader():
        with private_section("reader"):
            raise ValueError(CANARY)

    monkeypatch.setenv("DPSYNTH_SHOW_PRIVATE_ERRORS", shown)
    monkeypatch.setenv("DAGSTER_REDACT_USER_CODE_ERRORS", "0")  # Dagster's own veil, off here.
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        assert not dg.materialize([reader], instance=instance, raise_on_error=False).success
    assert bool(scan_folders([tmp_path], [CANARY]).leaks) == (shown == "1")


@pytest.fixture(scope="module")
def rehearsal(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rehearsal")
    keep_demo_plans(tmp_path_factory, folder / "home")
    return folder, rehearse(folder, everything=False)


def test_every_registered_method_is_rehearsed(tmp_path):
    planted = Planted(tmp_path, ())
    cohorts = (private_cohort(planted), secret_cohort(planted))
    rehearsed = [entry.method for cohort in cohorts for entry in cohort.methods]
    assert sorted(rehearsed) == sorted(REGISTRY)


@pytest.mark.slow
def test_every_step_ran_on_canaries_and_then_died_with_records_in_hand(rehearsal):
    """Each method by its candidate, its stages, or its model; what reads without paying as well."""
    _, done = rehearsal
    assert [name for name, run in done.runs.items() if run.succeeded] == ["whole graph"]
    assert {"source torn", "gate refuses", "embedder fails", "budget refuses"} <= set(done.runs)
    broken = [run for name, run in done.runs.items() if name.startswith(BREAKING)]
    assert all(run.failed == run.selected for run in broken)
    made = done.runs["whole graph"].selected
    for name in REGISTRY:
        assert any(f"__{name}__" in asset for asset in made), name
        if name != "resampled":  # It charges nothing itself.
            assert any(f"__{name}__" in asset for asset in done.broken), name
    assert done.broken >= {
        "rehearsal__shared__private_embeddings",
        "rehearsal__references__non_private_corpus",
        "rehearsal__evaluation__evaluation_report",
        "secret_rehearsal__shared__secrets",
    }


@pytest.mark.slow
def test_no_canary_and_no_key_is_in_any_byte_of_the_installation(rehearsal):
    """With encryption this holds for the sensitive store as well."""
    folder, done = rehearsal
    assert done.report.canaries > 3000
    assert done.report.leaks == ()
    assert done.report.unread == ()
    searched = {path.name for path in (folder / "home").iterdir()}
    expected = {"artifacts", "dagster", "ledger", "logs", "released", "reports", "sensitive"}
    assert expected <= searched
    for name in ("debug.log", "output.log"):
        assert (folder / "home" / "logs" / name).stat().st_size > 10_000
    assert sum(leak.canaries for leak in done.control.leaks) > 500
    assert done.passed
