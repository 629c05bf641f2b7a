"""Records replaced under the version that was paid for are told before anything is charged."""

import random
import shutil
from concurrent.futures import ThreadPoolExecutor, wait

import numpy as np
import polars as pl
import pytest

from dpsynth_assets.datasets import CohortSpec
from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.sensitive.fingerprints import FOLDER, Prints
from dpsynth_assets.sensitive.purging import PurgeRule, purge
from dpsynth_assets.sensitive.read_records import reading_digest, source_digest
from dpsynth_assets.sensitive.read_source import store_records
from dpsynth_assets.workers import LocalWorkers
from dpsynth_assets_tests.assets.test_shared_records import (
    SECRET,
    declare,
    letters,
    refusal,
    store as store,
)
from dpsynth_assets_tests.stored import read_rows

KEY = bytes(range(32))


def digest(spec):
    return source_digest(read_rows(spec), spec, KEY)


def test_replaced_records_are_refused_once_a_release_was_paid_for(tmp_path, store):
    assert refusal(declare(tmp_path, "one", letters(range(50))), store) is None
    store.pay_for_records("one")
    (part,) = store.parts("one").places
    kept = (part / "source.parquet").read_bytes()
    message = refusal(declare(tmp_path, "one", letters(range(1, 51))), store)
    assert message.startswith("source.version: expected the records of version '1'")
    assert "raise source.version" in message
    assert "every release is then charged again" in message
    assert "\n" not in message
    assert SECRET not in message
    assert "50" not in message
    assert (part / "source.parquet").read_bytes() == kept
    assert store.parts("one").places == (part,)


@pytest.mark.parametrize(
    ("rows", "changes"),
    [
        ([*letters(range(50)), *[""] * 3], {}),
        ([""] * 4, {}),
        ([], {}),
        (letters(range(50)), {"public_facts": {"records": 45}}),
    ],
    ids=["too many set aside", "none to use", "none", "another number than declared"],
)
@pytest.mark.parametrize("parts", [1, 2])
def test_records_that_a_check_refuses_are_refused_in_one_constant_sentence(
    tmp_path, store, rows, changes, parts
):
    spec = declare(tmp_path, "one", rows, columns={"text": "text"}, parts=parts, **changes)
    with pytest.raises(PrivacyError) as refused:
        store_records(spec, store, LocalWorkers(1))
    assert str(refused.value) == (
        "The records of 'one' differ from its dataset file: nothing was charged. `dpsynth "
        "datasets check` on the steward's terminal says why."
    )
    assert not [*store.folder("one").rglob("*.parquet")]


def test_what_the_message_offers_is_true(tmp_path, store):
    first, other = letters(range(50)), letters(range(200, 260))
    assert refusal(declare(tmp_path, "one", first), store) is None
    store.pay_for_records("one")
    assert refusal(declare(tmp_path, "one", other), store)
    assert refusal(declare(tmp_path, "one", first), store) is None, "restored"
    raised = {"source": {"path": str(tmp_path / "one.csv"), "version": "2"}}
    assert refusal(declare(tmp_path, "one", other, **raised), store) is None, "another version"
    store.pay_for_records("one")
    assert refusal(declare(tmp_path, "one", first, **raised), store)
    assert refusal(declare(tmp_path, "one", first), store) is None, "of its own version"


def test_records_that_nothing_was_paid_for_may_be_replaced(tmp_path, store):
    for start in (0, 100, 200):
        assert refusal(declare(tmp_path, "one", letters(range(start, start + 50))), store) is None
    store.pay_for_records("one")
    assert refusal(declare(tmp_path, "one", letters(range(200, 250))), store) is None
    assert refusal(declare(tmp_path, "one", letters(range(50))), store)


def test_a_paid_digest_stays_through_a_purge_and_goes_with_the_store(tmp_path, store):
    assert refusal(declare(tmp_path, "one", letters(range(50))), store) is None
    store.pay_for_records("one")
    purge(store, PurgeRule(), lambda _: False)
    other = declare(tmp_path, "one", letters(range(100, 150)))
    assert refusal(other, store)
    shutil.rmtree(store.base)
    assert refusal(other, store) is None


def test_a_digest_that_nothing_was_paid_for_goes_with_a_purge(tmp_path, store):
    assert refusal(declare(tmp_path, "one", letters(range(50))), store) is None
    assert (store.base / FOLDER / "one.read").exists()
    purge(store, PurgeRule(dataset="one"), lambda _: False)
    assert not (store.base / FOLDER / "one.read").exists()


def test_records_of_a_refused_reading_are_not_the_ones_paid_for(tmp_path, store):
    """The second reading fails at the fingerprints of a copy: the first one's records stay."""
    assert refusal(declare(tmp_path, "one", letters(range(50))), store) is None
    assert refusal(declare(tmp_path, "two", letters(range(300, 350))), store) is None
    assert refusal(declare(tmp_path, "two", letters(range(50))), store)
    store.pay_for_records("two")
    assert refusal(declare(tmp_path, "two", letters(range(300, 350))), store) is None


def test_order_files_and_formats_do_not_matter(tmp_path):
    rows = letters(range(40))
    spec = declare(tmp_path, "one", rows)
    first = digest(spec)
    frame = pl.read_csv(tmp_path / "one.csv")
    for seed in range(3):
        order = random.Random(seed).sample(range(40), 40)
        frame[order].write_csv(tmp_path / "one.csv")
        assert digest(spec) == first
    frame[:15].write_parquet(tmp_path / "parts-a.parquet")
    frame[15:].write_parquet(tmp_path / "parts-b.parquet")
    assert digest(declare(tmp_path, "one", rows, source={"path": f"{tmp_path}/parts-*"})) == first


@pytest.mark.parametrize(
    "change",
    [
        lambda rows: rows[1:],
        lambda rows: [*rows, rows[0]],
        lambda rows: [rows[0] + " ", *rows[1:]],
        lambda rows: [rows[0].upper(), *rows[1:]],
    ],
)
def test_one_row_is_enough_to_differ(tmp_path, change):
    columns = {"columns": {"text": "text"}}
    first = digest(declare(tmp_path, "one", letters(range(20)), **columns))
    assert digest(declare(tmp_path, "one", change(letters(range(20))), **columns)) != first


def test_values_do_not_collide_by_joining(tmp_path):
    labels = {"columns": {"text": "text", "labels": ["label"]}}
    facts = {"public_facts": {"labels": {"label": ["a", "b"]}}}
    found = set()
    for text, label in [("ab", "c"), ("a", "bc"), ("abc", None), (None, "abc")]:
        spec = declare(tmp_path, "one", ["x"], **labels, **facts)
        pl.DataFrame({"text": [text], "label": [label]}).write_csv(tmp_path / "one.csv")
        found.add(digest(spec))
    assert len(found) == 4


def test_a_key_is_needed_to_know_a_digest(tmp_path):
    spec = declare(tmp_path, "one", letters(range(5)))
    assert source_digest(read_rows(spec), spec, bytes(32)) != digest(spec)


def test_a_window_is_compared_by_its_own_records(tmp_path):
    """A source that grows by the next month's records leaves this month's digest as it was."""
    cohorts = {"by": "window", "column": "day", "period": "month", "first": "2026-01-01"}
    declared = declare(tmp_path, "mail", ["x"], cohorts=cohorts, columns={"id": "id"})
    spec = CohortSpec.of(declared, "2026_01")
    days = ["2026-01-05", "2026-01-09", "2026-02-05", "2026-01-31"]
    rows = pl.DataFrame({"id": range(4), "day": days, "text": ["one", "two", "three", "four"]})
    digests = []
    for number in (2, 3, 4):
        rows.head(number).write_csv(tmp_path / "mail.csv")
        digests.append(digest(spec))
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize("columns", [{"text": "text", "id": "id"}, {"text": "id"}])
def test_an_edited_set_of_columns_lets_no_other_records_pass(tmp_path, store, columns):
    assert refusal(declare(tmp_path, "one", letters(range(50))), store) is None
    store.pay_for_records("one")
    other = declare(tmp_path, "one", letters(range(100, 150)), columns=columns)
    assert refusal(other, store)


def test_two_runs_at_once_pay_for_the_records_that_they_read(tmp_path, store):
    """One reads the source anew while the other is charged: whoever comes second is refused."""
    first = declare(tmp_path, "one", letters(range(50)))
    assert refusal(first, store) is None
    paid = []
    with ThreadPoolExecutor(1) as other:
        digest = source_digest(read_rows(first), first, store.read_records.key)
        with store.admitting(first, digest, Prints(np.array([]))):
            charge = other.submit(lambda: paid.append(store.pay_for_records("one")))
            assert not wait([charge], timeout=0.05).done, "charged between reading and storing"
        charge.result()
    assert paid
    assert refusal(declare(tmp_path, "one", letters(range(1, 51))), store)


def test_a_reading_that_was_cut_off_is_not_charged_for(tmp_path, store):
    spec = declare(tmp_path, "one", letters(range(50)))
    assert refusal(spec, store) is None
    store.read_records.begin_reading("one")
    with pytest.raises(PrivacyError, match=r"cut off\. Nothing was charged"):
        store.pay_for_records("one")
    assert refusal(spec, store) is None
    store.pay_for_records("one")


def test_records_that_nobody_noted_as_read_are_not_charged_for(tmp_path, store):
    assert refusal(declare(tmp_path, "one", letters(range(50))), store) is None
    (note,) = store.base.rglob("one.read")
    note.unlink()
    with pytest.raises(PrivacyError, match=r"cut off\. Nothing was charged"):
        store.pay_for_records("one")


def test_records_that_are_not_there_are_not_charged_for(store):
    with pytest.raises(PrivacyError, match=r"got nothing: .*Nothing was charged"):
        store.pay_for_records("one")


@pytest.mark.parametrize(
    "edit",
    [
        {"held_out_fraction": 0.2},
        {"columns": {"text": "text", "max_text_characters": 900}},
        {"privacy_unit": {"column": "id", "max_records": 3}},
    ],
)
def test_records_stored_under_another_declaration_are_not_charged_for(tmp_path, store, edit):
    """A bound of three records a unit, say, would be charged as the bound of one in the file."""
    assert refusal(declare(tmp_path, "one", letters(range(50)), **edit), store) is None
    declared = reading_digest(declare(tmp_path, "one", letters(range(50))))
    with pytest.raises(PrivacyError, match=r"under another declaration\. Nothing was charged"):
        store.pay_for_records("one", declared=declared)
