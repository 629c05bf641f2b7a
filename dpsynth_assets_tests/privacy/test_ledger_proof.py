"""Laws of the ledger's public head: who is under it, what changes it, and what must not."""

import hashlib
import json

import pytest

from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.ledger import Ledger
from dpsynth_assets.privacy.ledger.proof import (
    ProvenEntry,
    TreeHead,
    _leaf,
    leads_to,
    proven,
    tree_head,
)
from dpsynth_assets_tests.privacy.ledger_cases import make_request, make_terms, release, sqlite_url


def root_by_definition(leaves):
    """RFC 9162, section 2.1.1, by its own words: split at the largest power of two below n."""
    if len(leaves) == 1:
        return leaves[0]
    split = 1
    while split * 2 < len(leaves):
        split *= 2
    halves = root_by_definition(leaves[:split]) + root_by_definition(leaves[split:])
    return hashlib.sha256(b"\x01" + halves).digest()


@pytest.fixture(scope="module")
def entries(tmp_path_factory):
    """Charges and commits of two cohorts by turns."""
    ledger, terms = Ledger(sqlite_url(tmp_path_factory.mktemp("ledger"))), make_terms(epsilon=500.0)
    for number in range(17):
        name = ("tickets", "notes")[number % 2]
        of_cohort = {"cohort": name, "dataset": name, "asset": f"{name}/mean/corpus"}
        release(ledger, terms, **of_cohort, release=str(number))
    return ledger.entries()


@pytest.mark.parametrize("size", range(1, 35))
def test_head_and_paths_are_those_of_the_definition_at_every_size(entries, size):
    part = entries[:size]
    head, shown = proven(part, part)
    assert head == tree_head(part)
    root = root_by_definition([_leaf(entry) for entry in part])
    assert head.root == hashlib.sha256(b"\x02" + size.to_bytes(8, "big") + root).hexdigest()
    assert all(leads_to(each, head) for each in shown)


@pytest.mark.parametrize("size", [1, 2, 5, 8, 21, 34])
def test_nothing_else_leads_to_the_head(entries, size):
    head, shown = proven(entries[:size], entries[:size])
    for each in shown:
        other = each.entry._replace(dataset="other")
        assert not leads_to(ProvenEntry(other, each.path), head)
        assert not leads_to(ProvenEntry(each.entry, (*each.path, head.root)), head)
        assert not leads_to(ProvenEntry(each.entry._replace(seq=0), each.path), head)
        assert not leads_to(ProvenEntry(each.entry._replace(seq=size + 1), each.path), head)
        if each.path:
            assert not leads_to(ProvenEntry(each.entry, each.path[:-1]), head)
            assert not leads_to(ProvenEntry(each.entry, (*each.path[:-1], "00" * 32)), head)


@pytest.mark.parametrize("size", range(1, 35))
def test_no_entry_leads_to_the_head_under_another_number_of_entries(entries, size):
    """In a plain tree the first entries of three lead to the root of four as well."""
    head, shown = proven(entries[:size], entries[:size])
    others = (TreeHead(number, head.root) for number in (0, -1, 1 << 70, *range(1, 70)))
    for other in (each for each in others if each != head):
        assert not any(leads_to(each, other) for each in shown)


def test_an_empty_ledger_has_no_head():
    with pytest.raises(PrivacyError, match="got none"):
        tree_head([])


def test_json_gives_back_the_entry(entries):
    head, shown = proven(entries, entries)
    for each in shown:
        read = ProvenEntry.from_json(json.loads(json.dumps(each.to_json())))
        assert read == each
        assert leads_to(read, head)
        assert read.entry.event == each.entry.event


@pytest.mark.parametrize("column", ["hash", "artifact_digest", "ex_post_epsilon", "other"])
def test_columns_that_no_leaf_holds_are_refused(entries, column):
    _, (shown,) = proven(entries, entries[:1])
    stored = shown.to_json()
    stored["entry"][column] = 1.0 if column == "ex_post_epsilon" else "x"
    with pytest.raises(PrivacyError, match="public columns"):
        ProvenEntry.from_json(stored)


def private_ledger(folder, epsilon, digest):
    """A ledger whose public facts are fixed and whose private values are these."""
    ledger = Ledger(sqlite_url(folder))
    terms = make_terms(accepts_ex_post=True)
    request = make_request(guarantee=GuaranteeType.EX_POST, event=None)
    reservation = ledger.reserve(request, terms)
    ledger.commit(
        reservation, artifact_digest=digest, artifact_uri=str(folder), ex_post_epsilon=epsilon
    )
    release(ledger, terms)
    last = ledger.entries()[-1]
    seen = {"seq": last.seq, "hash": last.hash, "recorded_at": last.recorded_at}
    ledger.record("recovery", {"action": "accept", "because": "a disk", "seen": seen})
    return ledger.entries()


def test_the_head_does_not_depend_on_private_values(tmp_path):
    """Neighbours change a bound, a digest and how long a stage took; never the head."""
    one = private_ledger(tmp_path / "one", 1.25, "d1")
    other = private_ledger(tmp_path / "other", 3.5, "d2")
    same = [
        each._replace(
            reservation=first.reservation,
            recorded_at="2031-01-01"
            if each.kind == "commit"
            else f"{first.recorded_at[:10]}T23:59:59.999999+00:00",
            key=first.key,
        )
        for first, each in zip(one, other, strict=True)
    ]
    assert [e.kind for e in one] == [e.kind for e in other]
    assert any(a.hash != b.hash for a, b in zip(one, other, strict=True))
    assert tree_head(one) == tree_head(same)


def test_a_recovery_leaves_without_the_hash_of_what_was_seen(tmp_path):
    entries = private_ledger(tmp_path, 1.25, "d1")
    _, (shown,) = proven(entries, entries[-1:])
    assert shown.entry.parameters == {"action": "accept", "because": "a disk"}
    assert not any(entry.hash in json.dumps(shown.to_json()) for entry in entries)
