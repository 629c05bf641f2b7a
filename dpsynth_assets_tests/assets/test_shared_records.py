"""Copies of a source: fingerprints tell that two cohorts read the same records."""

import json
import stat
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from dpsynth_assets.datasets import CohortSpec, PrivateDatasetSpec
from dpsynth_assets.methods.dataset_plan import budget_terms, stage_request
from dpsynth_assets.methods.evolution.secret_incidence import read_public_incidence
from dpsynth_assets.methods.planning import plan_dataset
from dpsynth_assets.orchestration.resources.stores import SensitiveStore
from dpsynth_assets.privacy.errors import BudgetExceededError, PrivacyError
from dpsynth_assets.privacy.events import POST_PROCESSING
from dpsynth_assets.sensitive.fingerprints import (
    FOLDER,
    Fingerprints,
    Prints,
    Reader,
    shares_records,
    store_key,
    text_prints,
)
from dpsynth_assets.sensitive.private_files import PrivateFiles
from dpsynth_assets.sensitive.purging import PurgeRule, purge
from dpsynth_assets.sensitive.read_records import reading_digest
from dpsynth_assets.sensitive.read_source import store_records
from dpsynth_assets.workers import LocalWorkers

SECRET = "Ottoline Brackenbury"


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path / "home"))
    return SensitiveStore()


def letters(numbers):
    return [f"{SECRET} wrote letter number {number} about a late train" for number in numbers]


def declare(folder, name, texts, **changes):
    source = folder / f"{name}.csv"
    pl.DataFrame({"id": range(len(texts)), "text": texts}).write_csv(source)
    base = {
        "name": name,
        "source": {"path": str(source)},
        "budget": {"epsilon": 4, "delta": 1e-6},
        "cluster_histogram": {},
        "methods": [{"method": "mean_clustered"}],
    }
    return PrivateDatasetSpec.model_validate(base | changes)


def refusal(spec, store):
    """Reads a cohort's records as its asset does; what it was refused for, or None."""
    try:
        store_records(spec, store, LocalWorkers())
    except PrivacyError as refused:
        return str(refused)
    return None


def stored(store, name):
    return bool([*store.folder(name).rglob("source.parquet")])


@pytest.mark.parametrize("shared", [range(100), range(40, 140), range(95, 195)])
def test_a_copy_under_another_name_is_refused_before_it_is_stored(tmp_path, store, shared):
    assert refusal(declare(tmp_path, "one", letters(range(100))), store) is None
    copied = [text.upper().replace(" ", "  ") for text in letters(shared)]
    if len(set(shared) & set(range(100))) < 10:
        copied += letters(range(5))
    message = refusal(declare(tmp_path, "two", copied), store)
    assert not stored(store, "two")
    assert refusal(declare(tmp_path, "one", letters(range(100))), store) is None, "as before"
    assert "cohort 'one' has read" in message
    assert "shares_records_with" in message
    assert SECRET not in message
    assert not any(character.isdigit() for character in message.split("source.path")[1])


def test_files_that_share_an_account_are_read(tmp_path, store):
    assert refusal(declare(tmp_path, "one", letters(range(50))), store) is None
    two = declare(tmp_path, "two", letters(range(50)), shares_records_with="one")
    assert refusal(two, store) is None


def test_the_same_place_is_told_whatever_it_holds(tmp_path, store):
    texts = ["thank you", "yes"]
    assert refusal(declare(tmp_path, "one", texts), store) is None
    two = declare(tmp_path, "two", texts, source={"path": str(tmp_path / "one.csv")})
    message = refusal(two, store)
    assert "cohort 'one' has read" in message


def yearly(folder):
    return declare(
        folder, "mail", [], source={"path": str(folder / "mail-*.csv")},
        cohorts={"by": "file", "pattern": "mail-{year}.csv"}, columns={"text": "text", "id": "id"},
    )  # fmt: skip


def put(folder, year, ids, texts):
    pl.DataFrame({"id": ids, "text": texts}).write_csv(folder / f"mail-{year}.csv")


def test_one_record_that_moved_to_another_cohort_of_its_dataset_is_told(tmp_path, store):
    declared = yearly(tmp_path)
    put(tmp_path, 2025, range(30), letters(range(30)))
    put(tmp_path, 2026, [*range(30, 60), 7], letters(range(100, 131)))
    assert refusal(CohortSpec.of(declared, "2025"), store) is None
    message = refusal(CohortSpec.of(declared, "2026"), store)
    assert "cohort 'mail_2025' has read" in message
    assert "may never change" in message
    assert not stored(store, "mail_2026")
    put(tmp_path, 2026, range(30, 60), letters(range(30)))
    assert refusal(CohortSpec.of(declared, "2026"), store) is None, "under ids of theirs"


def listing(folder, ids):
    """A dataset with public incidence, whose records have the ids 0 to 49."""
    held = {"record_id": ids, "secret": ["x"] * len(ids), "kind": ["code"] * len(ids)}
    pl.DataFrame(held).write_parquet(folder / "held.parquet")
    kind = {"name": "code", "detector": "regex", "pattern": "x", "max_records": 9}
    return declare(
        folder, "listed", letters(range(50)), columns={"text": "text", "id": "id"},
        budget={"epsilon": 8, "delta": 1e-6, "accountant": "tight"},
        secrets={"kinds": [kind], "public_incidence": str(folder / "held.parquet")},
    )  # fmt: skip


def test_listed_ids_are_canonical_and_each_is_the_id_of_a_record(tmp_path, store):
    spec = listing(tmp_path, ["7", " 8 ", "9.0"])
    assert read_public_incidence(spec.secrets).record_ids == ("7", "8", "9")
    assert refusal(spec, store) is None
    message = refusal(listing(tmp_path, ["7", "R8"]), store)
    assert "expected ids of records of the dataset" in message
    assert "R8" not in message
    other = reading_digest(listing(tmp_path, ["R7", "R8"]))  # The same declaration.
    with pytest.raises(PrivacyError, match=r"under another declaration\. Nothing was charged"):
        store.pay_for_records("listed", declared=other)


@pytest.mark.parametrize(
    "beside",
    [
        {"privacy_unit": {"column": "person", "max_records": 2}},
        {"cohorts": {"by": "file", "pattern": "m-{year}.csv"}},
    ],
)
def test_listed_ids_are_refused_where_they_name_no_record_by_themselves(tmp_path, beside):
    written = listing(tmp_path, ["7"]).model_dump(mode="json", exclude_unset=True)
    with pytest.raises(ValueError, match=r"secrets\.public_incidence|ids are unique only within"):
        PrivateDatasetSpec.model_validate(written | beside)


def met(base, name, texts):
    """The cohort whose texts another one shares; else they are kept."""
    files = PrivateFiles(base)
    prints = Prints(text_prints(texts, store_key(files, base)))
    reader = Reader(cohort=name, account=name, dataset=name)
    return Fingerprints(files, base).admit(reader, prints)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (letters(range(100)), [*letters(range(200, 300)), "thank you", "thank you very much"]),
        (["thank you", "many thanks", "best regards"] * 9, ["thank you", "best regards"] * 9),
        (letters(range(2)), letters(range(2))),
        (letters(range(1500)), letters([*range(9), *range(2000, 3500)])),
        ([], letters(range(5))),
        ([], []),
    ],
)
def test_a_few_common_texts_are_no_common_source(tmp_path, store, first, second):
    assert met(store.base, "one", first) is None
    assert met(store.base, "two", second) is None


@pytest.mark.parametrize(
    ("common", "smaller", "alike"),
    [(10, 1000, True), (10, 1001, False), (9, 900, False), (3, 6, True), (3, 7, False)],
)
def test_enough_in_common_is_stated(common, smaller, alike):
    first = np.arange(smaller, dtype=np.uint64)
    second = np.arange(smaller - common, 3 * smaller + 9, dtype=np.uint64)
    assert shares_records(first, second) is alike
    assert shares_records(second, first) is alike


def test_fingerprints_are_keyed_and_for_their_owner_alone(tmp_path, store):
    assert refusal(declare(tmp_path, "one", letters(range(50))), store) is None
    folder = store.base / FOLDER
    for path in folder.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert SECRET.encode() not in path.read_bytes()
    (folder / "key").unlink()
    assert refusal(declare(tmp_path, "two", letters(range(50))), store) is None, "another key"


def test_what_a_paid_release_has_read_stays_remembered(tmp_path, store):
    one, two = (declare(tmp_path, name, letters(range(50))) for name in ("one", "two"))
    prints = Fingerprints(PrivateFiles(store.base), store.base)
    assert refusal(one, store) is None
    prints.note_paid("one")
    other = declare(tmp_path, "one", letters(range(900, 950)))
    assert refusal(other, store) is None
    purge(store, PurgeRule(), lambda _: False)
    assert refusal(two, store)


def test_a_cohort_that_never_paid_makes_room_once_it_is_purged(tmp_path, store):
    one, two = (declare(tmp_path, name, letters(range(50))) for name in ("one", "two"))
    assert refusal(one, store) is None
    purge(store, PurgeRule(dataset="one"), lambda _: False)
    assert not stored(store, "one")
    assert refusal(two, store) is None
    assert refusal(one, store)


def sharing(folder, share):
    """Two datasets, the second as it is before and once it charges the account of the first."""
    methods = [{"method": "mean_clustered", "budget_share": share}]
    terms = {"methods": methods, "budget": {"epsilon": 16, "delta": 1e-6}}
    one, two = (declare(folder, name, letters(range(50)), **terms) for name in ("one", "two"))
    return one, two, two.model_copy(update={"shares_records_with": "one"})


def asked(spec, release="1"):
    plan = plan_dataset(spec)
    request = stage_request(spec, plan.methods[0], plan.methods[0].plan.stages[0], release=release)
    return request, plan.budget, plan.releases


def test_both_files_charge_one_account_up_to_its_budget(tmp_path, ledger):
    """Each alone fits the budget; together they do not."""
    one, _, two = sharing(tmp_path, 0.6)
    ledger.reserve(*asked(one))
    spent = ledger.spend("one").epsilon
    with pytest.raises(BudgetExceededError, match="overspend cohort 'one'"):
        ledger.reserve(*asked(two))
    assert (ledger.spend("one").epsilon, ledger.spend("two").epsilon) == (spent, 0.0)
    assert {entry.cohort for entry in ledger.entries()} == {"one"}
    little = one.methods[0].model_copy(update={"budget_share": 0.3})
    ledger.reserve(*asked(two.model_copy(update={"methods": [little]})))
    assert ledger.spend("one", budget_terms(one)).epsilon > spent
    assert json.loads(ledger.entries()[-1].terms_json)["epsilon"] == 16.0


def test_a_dataset_with_charges_of_its_own_does_not_go_over_to_another_account(tmp_path, ledger):
    """Account `one` would forget what `two` has spent on the same records."""
    one, two, moved = sharing(tmp_path, 0.3)
    for spec in (one, two):
        paid = ledger.reserve(*asked(spec))
        ledger.commit(paid, artifact_digest="d", artifact_uri="u")
    for release in ("1", "2"):
        refusal = ledger.preview(*asked(moved, release)).refusal
        assert refusal.startswith("Expected account 'two' for two/")
        assert "got account 'one'" in refusal
        assert "Nothing was charged. Remove `shares_records_with`" in refusal
        assert "\n" not in refusal
        with pytest.raises(PrivacyError, match="Expected account 'two'"):
            ledger.reserve(*asked(moved, release))
    assert len(ledger.entries()) == 4
    request, *rest = asked(moved, "2")
    free = replace(request, event=POST_PROCESSING, asset="two/mean_clustered/more")
    assert ledger.preview(free, *rest).admitted
    assert ledger.preview(*asked(two, "1")).reused
    assert ledger.preview(*asked(two, "2")).admitted
    assert ledger.preview(*asked(one, "2")).admitted


def test_equal_automatic_replies_are_no_common_source(store):
    """What occurs more than once in a cohort identifies nobody, on whichever side it does."""
    replies = [f"I am away until day {day} of this month" for day in range(12)]
    once, twice = [*letters(range(1000)), *replies], [*letters(range(1000, 2000)), *replies * 2]
    for number, (first, second) in enumerate([(once, twice), (twice, once), (twice, replies * 90)]):
        base = store.base / str(number)
        assert met(base, "one", first) is None
        assert met(base, "two", second) is None
        assert met(base, "three", first) is not None
