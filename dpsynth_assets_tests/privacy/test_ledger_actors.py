"""Laws of actors: a signature fits one entry, and a plan is paid for once others have approved."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import pytest

from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.privacy.events import POST_PROCESSING, ComposedEvent, GaussianEvent
from dpsynth_assets.privacy.ledger import Checkpoint, Ledger, PlannedRelease
from dpsynth_assets.privacy.ledger.actors import Approvals, account, make_key, read_key
from dpsynth_assets.privacy.ledger.chain import entry_hash, sealed
from dpsynth_assets.privacy.ledger.schema import ApprovalTerms
from dpsynth_assets_tests.privacy.ledger_cases import (
    HALF_RHO,
    edit,
    make_request,
    make_terms,
    sqlite_url,
)

PEOPLE = ("ann", "ben", "cem", "dana")
PLAN = [PlannedRelease("tickets/mean/corpus", HALF_RHO)]
ROUND = {"event": ComposedEvent(events=(HALF_RHO,) * 2)}
OTHER = ROUND | {"asset": "tickets/other/corpus"}


@pytest.fixture
def book(tmp_path):
    """Opens the ledger as a person who has a key, or as an account."""
    for name in PEOPLE:
        make_key(tmp_path / name)

    def opened(name=None, **more):
        actor = account if name is None else partial(read_key, tmp_path / name)
        return Ledger(sqlite_url(tmp_path), actor=actor, **more)

    return opened


@pytest.fixture
def asking(tmp_path, book):
    """Terms that ask for approvals by these people."""

    def terms(needed, *names, **changes):
        keys = tuple(read_key(tmp_path / name).name for name in names)
        return make_terms(approvals=ApprovalTerms(needed=needed, keys=keys), **changes)

    return terms


def approve(book, terms, *names, plan=PLAN):
    for name in names:
        book(name).approve("tickets", "tickets", terms, plan)


def refused(book, terms, said, name="ann", plan=PLAN, **changes):
    before = book().entries()
    told = book(name).preview(make_request(**changes), terms, plan)
    with pytest.raises(PrivacyError, match=said) as raised:
        book(name).reserve(make_request(**changes), terms, plan)
    assert told.refusal == str(raised.value)
    assert "\n" not in told.refusal
    assert book().entries() == before


def test_entries_name_who_wrote_them(book):
    reservation = book("ann").reserve(make_request(), make_terms())
    book().commit(reservation, artifact_digest="d", artifact_uri="u")
    book("ben").record("purge", {"older_than_seconds": 0.0}, "tickets")
    paid, stored, purged = book().entries()
    assert paid.acted_by == paid.actor != purged.actor
    assert stored.acted_by == f"{account().name} (not signed)"
    assert book().verify().ok


@pytest.mark.parametrize("moved", ["to the next entry", "to another ledger", "away"])
def test_a_signature_fits_its_own_entry_alone(tmp_path, book, moved):
    for number in "12":
        book("ann").reserve(make_request(release=number), make_terms(epsilon=20.0))
    first, second = book().entries()
    if moved == "to another ledger":
        other = Ledger(sqlite_url(tmp_path / "other"), actor=partial(read_key, tmp_path / "ann"))
        other.reserve(make_request(release="1"), make_terms(epsilon=20.0))
        first = other.entries()[0]
    taken = "NULL" if moved == "away" else f"'{first.signature}'"
    edit(tmp_path, f"UPDATE privacy_ledger SET signature = {taken} WHERE seq = 2")
    again = entry_hash(book().entries()[1])  # Whoever may write rows can hash them anew.
    edit(tmp_path, f"UPDATE privacy_ledger SET hash = '{again}' WHERE seq = 2")
    (problem,) = book().verify().problems
    assert (problem.seq, "an invalid signature" in problem.message) == (second.seq, True)


@pytest.mark.parametrize("forged", ["none", "zeros", "of another key", "of an account"])
def test_an_approval_that_its_approver_did_not_sign_opens_no_gate(tmp_path, book, asking, forged):
    terms = asking(1, "ben")
    approve(book, terms, "ben")
    (given,) = book().entries()
    if forged == "of an account":
        made = sealed(given, account())
    else:
        signed = {"none": None, "zeros": "00" * 64}
        other = sealed(given, read_key(tmp_path / "cem")).signature
        made = sealed(given._replace(signature=signed.get(forged, other)))
    taken = "NULL" if made.signature is None else f"'{made.signature}'"
    values = f"actor = '{made.actor}', signature = {taken}, hash = '{made.hash}'"
    edit(tmp_path, f"UPDATE privacy_ledger SET {values} WHERE seq = 1")
    said = "is an approval without" if forged == "of an account" else "has an invalid signature"
    with pytest.raises(PrivacyError, match=f"entry 1 {said}"):
        book("ann").reserve(make_request(), terms, PLAN)


def test_approvals_in_a_copy_of_a_ledger_are_of_the_same_plan_alone(tmp_path, book, asking):
    terms = asking(1, "ben", epsilon=20.0)
    approve(book, terms, "ben")
    (given,) = book().entries()

    def ledger(name):
        return Ledger(sqlite_url(tmp_path / name), actor=partial(read_key, tmp_path / "ann"))

    with ledger("copy")._database.appending() as copied:
        copied.append(given)
    ledger("copy").reserve(make_request(), terms, PLAN)
    with pytest.raises(PrivacyError, match="got 0"):
        ledger("copy").reserve(make_request(release="2"), replace(terms, epsilon=30.0), PLAN)
    with ledger("begun")._database.appending() as copied:
        copied.append(sealed(given, read_key(tmp_path / "cem")))
        copied.append(sealed(given._replace(seq=2, key="2", reservation="2")))
    with pytest.raises(PrivacyError, match="entry 2 does not seal"):
        ledger("begun").reserve(make_request(), terms, PLAN)


def test_a_plan_is_paid_for_once_enough_others_have_approved_it(book, asking):
    terms = asking(2, "ann", "ben", "cem", epsilon=20.0)
    refused(book, terms, "Expected 2 approvals of plan .* got 0")
    approve(book, terms, "ann", "ben", "ben")
    refused(book, terms, "the launcher's aside, got 1")
    approve(book, terms, "cem")
    refused(book, terms, "which signs nothing", name=None)
    assert len(book().entries()) == 3
    book("ann").reserve(make_request(), terms, PLAN)
    book("dana").reserve(make_request(release="2"), terms, PLAN)
    refused(book, terms, "another event", asset="tickets/other/corpus")
    refused(book, terms, "another event", event=GaussianEvent(noise_multiplier=1.5))
    for asked in (ROUND, OTHER):  # Whether a round fits may be asked for as one.
        assert book("ann").preview(make_request(release="3", **asked), terms, PLAN).admitted
        with pytest.raises(PrivacyError, match="another event"):
            book("ann").reserve(make_request(release="3", **asked), terms, PLAN)


def test_a_charge_that_passed_by_the_gate_is_found(book, asking, monkeypatch):
    terms, ample = asking(1, "ben", epsilon=20.0), make_terms(epsilon=20.0)
    approve(book, terms, "ben")
    with monkeypatch.context() as patched:
        patched.setattr(Approvals, "check", lambda *_, **__: None)
        for number, (name, more) in enumerate([("ann", {}), ("ben", {}), ("ann", OTHER)]):
            book(name).reserve(make_request(release=f"{number}", **more), terms, PLAN)
        book("ann").reserve(make_request(release="under no rule"), ample, PLAN)
    told = "was charged without the approvals that its cohort asked for"
    assert [str(each) for each in book().verify().problems] == [
        f"entry {number}: {told}" for number in (3, 4, 5)
    ]
    refused(book, ample, "as they stand in the ledger", release="not lowered by those")


def test_a_declaration_stands_for_every_cohort_of_its_dataset(book, asking):
    terms, month = asking(1, "ben", partition="month"), {"cohort": "tickets/1"}
    book("ben").approve("tickets/1", "tickets", terms, PLAN)
    book("ann").reserve(make_request(**month), terms, PLAN)
    new = make_terms(partition="month")
    refused(book, new, "as they stand in the ledger", cohort="tickets/2")


def test_what_costs_nothing_needs_no_approval_and_changes_no_declaration(book, asking):
    terms, free = asking(1, "ben"), make_request(event=POST_PROCESSING)
    approve(book, terms, "ben")
    book().reserve(free, make_terms())
    refused(book, make_terms(), "as they stand in the ledger")


@pytest.mark.parametrize("edited", ["ε", "the plan", "the file"])
def test_an_edit_needs_new_approvals(book, asking, edited):
    terms, plan = asking(1, "ben"), PLAN
    approve(book, terms, "ben")
    book("ann").reserve(make_request(), terms, PLAN)
    if edited == "the plan":
        plan = [*PLAN, PlannedRelease("tickets/other/corpus", HALF_RHO)]
    elif edited == "the file":
        terms = replace(terms, approvals=replace(terms.approvals, declaration="another"))
    else:
        terms = replace(terms, epsilon=20.0)
    refused(book, terms, "got 0", plan=plan, release="2")
    approve(book, terms, "ben", plan=plan)
    book("ann").reserve(make_request(release="2"), terms, plan)


@pytest.mark.parametrize("charged", [True, False])
@pytest.mark.parametrize("lowered", ["number", "keys", "all"])
def test_a_declaration_falls_only_with_the_approvals_it_asks_for(book, asking, charged, lowered):
    old = asking(2, "ben", "cem", "dana")
    approve(book, old, "ben", "cem")
    if charged:
        book("ann").reserve(make_request(), old, PLAN)
    new = {"number": asking(1, "ben", "cem", "dana"), "keys": asking(1, "ann"), "all": make_terms()}
    terms, request = new[lowered], make_request(release="2")
    approve(book, terms, *(["ann", "ben"] if lowered == "keys" else ["ben"]))
    refused(book, terms, "as they stand in the ledger", name="dana", release="2")
    approve(book, terms, "cem")
    book("dana").reserve(request, terms, PLAN)
    assert book().approvals("tickets").standing == terms.approvals


def test_a_plan_that_was_approved_in_part_binds_nobody(book, asking):
    approve(book, asking(2, "ben", "cem"), "ben")
    terms = asking(1, "dana")
    approve(book, terms, "dana")
    book("ann").reserve(make_request(), terms, PLAN)


def test_approvals_that_count_for_nothing_are_refused(tmp_path, book, asking):
    for name, terms, said in [
        ("ann", make_terms(), "asks for none"),
        (None, asking(1, "ben"), "Expected a key that signs"),
        ("ann", asking(1, "ben"), "Expected a key among the approvers"),
    ]:
        with pytest.raises(PrivacyError, match=said):
            approve(book, terms, name)
    (tmp_path / "ann").chmod(0o640)
    (tmp_path / "ben").write_text("no key")
    for name, said in [("ann", "got one with the permissions 640"), ("ben", "another file")]:
        refused(book, make_terms(), said, name=name)
    assert not book().entries()


def test_racing_processes_approve_once_each_and_pay_only_afterwards(tmp_path, book, asking):
    terms = asking(2, "ben", "cem")

    def act(name):
        if name != "ann":
            return approve(book, terms, name)
        try:
            return book("ann").reserve(make_request(), terms, PLAN)
        except PrivacyError:
            return None

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(act, ["ben", "ann", "cem", "ben", "ann", "cem"]))
    kinds = [entry.kind for entry in book().entries()]
    assert kinds[:2] == ["approval"] * 2
    assert kinds.count("approval") == 2
    kept = Checkpoint(tmp_path, sqlite_url(tmp_path))
    kept.save(book()._refreshed())
    assert kept.load() == book()._refreshed()
