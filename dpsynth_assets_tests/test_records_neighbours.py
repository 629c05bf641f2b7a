"""Laws of neighbours: one unit more or less moves no more records than its bound."""

import json
from collections import Counter

import polars as pl
import pytest
from hypothesis import HealthCheck, assume, given, settings, strategies as st

from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.records import canonical_record_id
from dpsynth_assets.records.reading import rows_of_parts
from dpsynth_assets.records.record_filters import Purpose, keyed_hash
from dpsynth_assets_tests.declared import private
from dpsynth_assets_tests.stored import read_private_records

FAST = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
# Mostly sound values, so that the rules that compare records meet records to compare.
GOOD_TEXTS = st.sampled_from(["a", "b", "c", " a "])
BAD_TEXTS = st.sampled_from(["", "   ", "long enough", "bad \ufffd", None, 7, {}])
TEXTS = GOOD_TEXTS | GOOD_TEXTS | GOOD_TEXTS | BAD_TEXTS
LABELS = st.sampled_from(["x", "x", "x", "y", "y", "y", "unknown", None, 1])
KEYS = st.sampled_from(["1", "2", "3", "1", "2", "3", "", None])
RECORDS = st.fixed_dictionaries({"text": TEXTS, "kind": LABELS, "key": KEYS, "who": KEYS})
SOURCES = st.lists(RECORDS, max_size=12)
HAS_COLUMNS = {"text": None, "kind": None, "key": None, "who": None}


def declare(path, *, ids, bound=None, **changes):
    base = {
        "source": {"path": str(path)},
        "columns": {"labels": ["kind"], "id": "key" if ids else None, "max_text_characters": 8},
        "public_facts": {"labels": {"kind": ["x", "y"]}},
        "privacy_unit": {"column": "who", "max_records": bound} if bound else {},
        "held_out_fraction": 0.5,
    }
    return private(**base | changes)


def read(folder, rows, **terms):
    file = folder / "rows.jsonl"
    lines = [json.dumps(row) for row in [HAS_COLUMNS, *rows]]
    file.write_text("\n".join(lines), encoding="utf-8")
    return read_private_records(declare(file, **terms))


def multiset(result):
    sides = {"kept": result.records, "held": result.held_out}
    return Counter((side, *row) for side, frame in sides.items() for row in frame.rows())


def moved(one, other):
    first, second = multiset(one), multiset(other)
    return list(((first - second) + (second - first)).elements())


def numbered(count, **changes):
    """Sound records, each with a text and an id of its own."""
    return [{"text": f"t{i}", "kind": "x", "key": str(i), **changes} for i in range(count)]


@FAST
@given(rows=SOURCES, added=RECORDS, ids=st.booleans())
def test_one_record_more_moves_at_most_one_record(tmp_path, rows, added, ids):
    before = read(tmp_path, rows, ids=ids)
    after = read(tmp_path, [*rows, added], ids=ids)
    assert len(moved(before, after)) <= 1


@FAST
@given(rows=SOURCES, content=RECORDS, ids=st.booleans(), data=st.data())
def test_a_replaced_record_that_keeps_its_id_moves_itself_alone(tmp_path, rows, content, ids, data):
    assume(rows)
    place = data.draw(st.integers(0, len(rows) - 1))
    if ids:
        rows = [{**row, "key": f"k{number}"} for number, row in enumerate(rows)]
    replaced = [*rows]
    replaced[place] = {**content, "key": rows[place]["key"]}
    before = read(tmp_path, rows, ids=ids, neighboring_relation="replace-one")
    after = read(tmp_path, replaced, ids=ids, neighboring_relation="replace-one")
    changes = moved(before, after)
    assert len(changes) <= 2
    assert not ids or {change[1] for change in changes} <= {rows[place]["key"]}


@FAST
@given(rows=SOURCES, bound=st.integers(1, 3), data=st.data(), unit=st.sampled_from("123"))
def test_a_replaced_unit_that_keeps_its_ids_moves_its_own_records_alone(
    tmp_path, rows, bound, data, unit
):
    rows = [{**row, "key": f"k{number}"} for number, row in enumerate(rows)]
    terms = {"ids": True, "bound": bound, "neighboring_relation": "replace-one"}

    def other(row):
        content = data.draw(RECORDS)
        return {**content, "key": row["key"], "who": row["who"]}

    replaced = [other(row) if (row["who"] or "").strip() == unit else row for row in rows]
    changes = moved(read(tmp_path, rows, **terms), read(tmp_path, replaced, **terms))
    assert {change[2] for change in changes} <= {unit}
    assert len(changes) <= 2 * bound


@pytest.mark.parametrize("bound", [None, 2])
def test_repeated_ids_are_refused_where_replaced_records_keep_them(tmp_path, bound):
    """Otherwise a replacement with an id that is in use would take two records away."""
    rows = numbered(6, who="1")
    terms = {"ids": True, "bound": bound, "neighboring_relation": "replace-one"}
    read(tmp_path, rows, **terms)
    taken = [{**rows[0], "text": "other", "key": "5"}, *rows[1:]]
    with pytest.raises(PrivacyError, match=r"columns\.id: expected ids that differ") as refusal:
        read(tmp_path, taken, **terms)
    assert "5" not in str(refusal.value)
    blank = [{**rows[0], "text": "", "key": "5"}, *rows[1:]]
    with pytest.raises(PrivacyError):  # Whether ids repeat is a function of ids alone.
        read(tmp_path, blank, **terms)
    assert read(tmp_path, taken, ids=True, bound=bound).records.height <= 4


@FAST
@given(rows=SOURCES, ids=st.booleans(), bound=st.integers(1, 3), unit=st.sampled_from("123"))
def test_a_unit_more_moves_only_its_own_records_and_at_most_its_bound(
    tmp_path, rows, ids, bound, unit
):
    others = [row for row in rows if (row["who"] or "").strip() != unit]
    changes = moved(
        read(tmp_path, others, ids=ids, bound=bound), read(tmp_path, rows, ids=ids, bound=bound)
    )
    assert len(changes) <= bound
    assert {change[2] for change in changes} <= {unit}
    assert len({change[0] for change in changes}) <= 1


@FAST
@given(rows=SOURCES, ids=st.booleans(), bound=st.none() | st.integers(1, 3), data=st.data())
def test_the_order_of_the_input_does_not_matter(tmp_path, rows, ids, bound, data):
    shuffled = data.draw(st.permutations(rows))
    one = read(tmp_path, rows, ids=ids, bound=bound)
    other = read(tmp_path, shuffled, ids=ids, bound=bound)
    assert one.records.equals(other.records)
    assert one.held_out.equals(other.held_out)
    assert one.set_aside == other.set_aside


@FAST
@given(rows=SOURCES, ids=st.booleans(), bound=st.none() | st.integers(1, 3))
def test_every_record_is_kept_held_out_or_set_aside(tmp_path, rows, ids, bound):
    result = read(tmp_path, rows, ids=ids, bound=bound)
    total = result.records.height + result.held_out.height + sum(result.set_aside.values())
    assert total == len(rows) + 1


def test_the_bound_keeps_the_smallest_hashes_not_the_first_or_shortest_texts(tmp_path):
    rows = numbered(9, who="1")
    everything = read(tmp_path, rows, ids=True, bound=9, held_out_fraction=0).records
    ids = sorted(
        everything["record_id"], key=lambda name: keyed_hash(Purpose.UNIT_BOUND, "reviews", name)
    )
    bounded = read(tmp_path, rows, ids=True, bound=4, held_out_fraction=0)
    assert set(bounded.records["record_id"]) == set(ids[:4])
    assert bounded.set_aside["over the unit's bound"] == 5


def test_an_id_belongs_to_its_unit(tmp_path):
    rows = [{"text": "a", "kind": "x", "key": "1", "who": who} for who in "12"]
    records = read(tmp_path, rows, ids=True, bound=1, held_out_fraction=0).records
    assert records.height == 2
    assert records["record_id"].n_unique() == 2


def test_two_spellings_of_a_unit_or_of_an_id_are_one(tmp_path):
    spelt = ["17", "17.0", " 17 ", "17.00", "17.5", "x.0"]
    rows = [{"text": f"t{i}", "kind": "x", "key": str(i), "who": it} for i, it in enumerate(spelt)]
    records = read(tmp_path, rows, ids=True, bound=1, held_out_fraction=0).records
    assert sorted(records["unit_id"]) == ["17", "17.5", "x.0"]
    rows = [{"text": f"t{i}", "kind": "x", "key": it} for i, it in enumerate(spelt)]
    kept = read(tmp_path, rows, ids=True, held_out_fraction=0)
    assert sorted(kept.records["record_id"]) == ["17.5", "x.0"]
    assert kept.set_aside["repeated id"] == 4
    unseen = ["Jos\u00e9", "Jose\u0301", "Jos\u00e9\u200b", "\ufeffJos\u00e9", "jos\u00e9"]
    unseen += ["Jose\u200d\u0301", "Jos\u00e9\ufe0f", "Jo\u034fs\u00e9", "Jos\u00e9\u3164"]
    rows = [{"text": f"t{i}", "kind": "x", "who": it} for i, it in enumerate(unseen)]
    records = read(tmp_path, rows, ids=False, bound=1, held_out_fraction=0).records
    assert sorted(records["unit_id"]) == ["Jos\u00e9", "jos\u00e9"]


def test_spellings_of_a_unit_lie_in_one_part_and_are_looked_up_as_one(tmp_path):
    spec = declare(tmp_path / "rows.jsonl", ids=True, bound=1, parts=7)
    rows = pl.DataFrame({"who": ["17", "17.0", " 17"]})
    assert len(rows_of_parts(rows, spec)) == 1
    assert canonical_record_id(spec, "4.0", "17.0") == canonical_record_id(spec, "4", " 17")


def test_held_out_shares_follow_the_declared_fraction(tmp_path):
    rows = numbered(2000)
    for fraction in (0, 0.1, 0.5):
        held = read(tmp_path, rows, ids=True, held_out_fraction=fraction).held_out.height
        assert abs(held - 2000 * fraction) <= 110


def test_equal_records_without_ids_are_all_kept_under_one_id_of_text_and_label(tmp_path):
    rows = [{"text": "same", "kind": "x"}, {"text": " same", "kind": "x"}] * 2
    records = read(tmp_path, rows, ids=False, held_out_fraction=0).records
    assert (records.height, records["record_id"].n_unique()) == (4, 1)
    other = read(tmp_path, [*rows, rows[0] | {"kind": "y"}], ids=False, held_out_fraction=0).records
    assert (other.height, other["record_id"].n_unique()) == (5, 2)


def test_the_repr_shows_nothing_of_the_records(tmp_path):
    assert repr(read(tmp_path, numbered(3), ids=True)) == "PrivateRecords()"


def test_values_that_join_alike_have_different_ids(tmp_path):
    frame = pl.DataFrame({"text": ["c", "bc"], "kind": ["x", "x"], "who": ["ab", "a"]})
    frame.write_parquet(tmp_path / "a.parquet")
    spec = declare(tmp_path / "a.parquet", ids=False, bound=1, held_out_fraction=0)
    assert read_private_records(spec).records["record_id"].n_unique() == 2


@FAST
@given(rows=SOURCES, texts=st.lists(TEXTS, min_size=12, max_size=12))
def test_no_text_moves_another_record_where_places_are_public(tmp_path, rows, texts):
    terms = {
        "neighboring_relation": "zero-out",
        "budget": {"epsilon": 4, "delta": 1e-6},
        "public_facts": {"labels": {"kind": ["x", "y"]}, "records": 12, "slots": True},
    }
    one = read(tmp_path, rows, ids=True, **terms)
    others = [row | {"text": text} for row, text in zip(rows, texts, strict=False)]
    other = read(tmp_path, others, ids=True, **terms)
    for before, after in ((one.records, other.records), (one.held_out, other.held_out)):
        assert before.drop("text").equals(after.drop("text"))
