"""`run_method`: what is charged, what is read again for nothing, and what is refused before either.

The method comes from the package `outside`, whose plan and rows take milliseconds.
"""

import sys
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from dpsynth_assets import PublicBase, run_method
from dpsynth_assets.methods import registry
from dpsynth_assets.methods.base import planned
from dpsynth_assets.methods.rejection_sampling import RejectionSettings
from dpsynth_assets.paths import home
from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.privacy.ledger import Ledger
from dpsynth_assets.run.records import FrameRecords
from dpsynth_assets_tests.object_stores import bucket, s3_address
from dpsynth_assets_tests.privacy.ledger_cases import make_request, make_terms
from dpsynth_assets_tests.tiny_models import write_language_model

__all__ = ["bucket", "s3_address"]

OUTSIDE = Path(__file__).parent / "methods" / "outside"
LABELS = ("good", "bad")
PUBLIC = pl.DataFrame({"text": [f"public {i}" for i in range(80)], "label": list(LABELS) * 40})


@pytest.fixture(autouse=True)
def method(monkeypatch, own_home):
    """The method of another package, registered for one test; a home of its own."""
    monkeypatch.syspath_prepend(str(OUTSIDE))
    import public_copy

    known = registry.REGISTRY | {"public_copy": public_copy.PublicCopy}
    for name, module in list(sys.modules.items()):
        if name.startswith("dpsynth_assets.") and hasattr(module, "REGISTRY"):
            monkeypatch.setattr(module, "REGISTRY", known)
    return public_copy.PublicCopy


def notes(word, rows=400):
    texts = [
        f"{word} number {i * 7919} was written down by someone on page {i}" for i in range(rows)
    ]
    return pl.DataFrame({"text": texts, "label": ["good"] * rows})


def run(frame, cohort, **changes):
    asked = {"epsilon": 4.0, "delta": 1e-6, "labels": LABELS} | changes
    return run_method("public_copy", frame, PublicBase(PUBLIC), cohort=cohort, **asked)


def test_records_stay_known_though_another_release_is_admitted_before_they_are_paid(monkeypatch):
    require = FrameRecords.require

    def beside(self, stage):
        require(self, stage)
        require(replace(self, release="2", frame=notes("moon")), stage)

    with monkeypatch.context() as patched:
        patched.setattr(FrameRecords, "require", beside)
        run(notes("sun"), "notes")
    with pytest.raises(PrivacyError, match="'notes' has read"):
        run(notes("sun"), "others")


def test_a_second_call_pays_nothing_reads_nothing_and_says_so(method, monkeypatch):
    with pytest.raises(ValueError, match="label"):
        run(notes("sun").drop("label"), "notes")
    assert not charged()
    other = run(notes("moon"), "letters")
    first = run(notes("sun"), "notes")
    assert first.label["subject"]["cohort"] == "notes"
    assert set(first.releases) == {"public_copy/label_counts", "public_copy/candidate_corpus"}
    assert {entry.cohort for entry in first.entries} == {"notes"}
    paid = [entry for entry in (*first.entries, *other.entries) if entry.kind == "reserve"]
    assert {entry.data_version for entry in paid} == {"in_memory"}
    monkeypatch.setattr(method, "release", lambda *_: pytest.fail("private records were read"))
    again = run(notes("sun"), "notes")
    assert (first.reused, again.reused) == (False, True)
    assert again.corpus.equals(first.corpus)
    assert [e.kind for e in again.entries] == [e.kind for e in first.entries]


def test_the_same_records_under_a_second_name_are_refused_before_a_charge(tmp_path):
    run(notes("sun"), "notes")
    for elsewhere in ({}, {"store": tmp_path / "elsewhere"}):
        with pytest.raises(PrivacyError, match="'notes' has read"):
            run(notes("sun"), "notes_again", **elsewhere)
    assert {entry.cohort for entry in charged()} == {"notes"}


def test_what_a_call_keeps_lies_where_the_sensitive_store_is(method, monkeypatch, bucket):
    """In an object store: fingerprints, and unfinished work that the same call resumes."""
    from dpsynth_assets_tests.security.conftest import key

    monkeypatch.setenv("DPSYNTH_SENSITIVE_URL", f"{bucket}/private")
    monkeypatch.delenv("DPSYNTH_SENSITIVE_KEY", raising=False)
    with pytest.raises(PrivacyError, match="nothing private leaves this machine unencrypted"):
        run(notes("sun"), "notes")
    assert not charged()
    monkeypatch.setenv("DPSYNTH_SENSITIVE_KEY", key(1))
    release = method.release
    monkeypatch.setattr(method, "release", lambda *_: 1 / 0)
    with pytest.raises(PrivacyError, match="withheld"):
        run(notes("sun"), "notes")
    place = home().sensitive
    kept = [name.removeprefix(place.path) for name in place.fs.find(place.path)]
    assert [name for name in kept if name.endswith("/.begun")]
    assert "/.fingerprints/notes.npy" in kept
    monkeypatch.setattr(method, "release", release)
    made = run(notes("sun"), "notes")
    paid = [e for e in made.entries if e.kind == "reserve" and e.asset.endswith("label_counts")]
    assert len(paid) == 1
    with pytest.raises(PrivacyError, match="'notes' has read"):
        run(notes("sun"), "notes_again")
    assert not home().local_sensitive.exists()


def test_another_frame_under_a_release_that_was_paid_for_is_refused(monkeypatch):
    """A stored corpus over one frame is no answer to a call with another."""
    first = run(notes("sun"), "notes")
    with pytest.raises(
        PrivacyError, match="release '1' of 'notes' as they were paid for, got"
    ) as no:
        run(notes("moon"), "notes")
    assert "Nothing was charged" in str(no.value)
    assert "moon" not in str(no.value)
    assert "400" not in str(no.value)
    again = run(notes("sun")[::-1], "notes")
    assert again.reused, "the same records in another order"
    assert again.entries == first.entries
    other = run(notes("moon"), "notes", release="2", epsilon=8.0)
    assert not other.reused


def test_a_failure_before_the_charge_says_that_nothing_was_charged(monkeypatch):
    from dpsynth_assets.run import records

    def fails(frame, spec):
        raise RuntimeError(frame["text"][0])

    monkeypatch.setattr(records, "canonical_frame", fails)
    with pytest.raises(PrivacyError, match="Nothing was charged") as caught:
        run(notes("secret word"), "notes")
    assert "secret word" not in str(caught.value)
    assert not charged()


def test_a_judge_that_answers_nonsense_is_refused_before_a_charge(method, monkeypatch, tmp_path):
    """The model writes scores, as its form forces it to, and they say nothing."""

    class Judged(method.config_type):
        rejection: RejectionSettings | None = None

    monkeypatch.setattr(method, "config_type", Judged)
    engine = {"model": str(write_language_model(tmp_path / "judge"))}
    settings = {"rejection": {"judge": "rubric", "engine": engine}}
    with pytest.raises(PrivacyError, match=r"scores plain sentences above [^\n]* take an instruct"):
        run(notes("sun"), "notes", settings=settings)
    assert not charged()


def charged():
    """The entries of the installation's ledger."""
    found = home().root.rglob("ledger.sqlite")
    return [entry for path in found for entry in Ledger(f"sqlite:///{path}").entries()]


@pytest.mark.parametrize(
    ("edit", "field"),
    [
        ({"labels": LABELS[::-1]}, "public_facts.labels.label"),
        ({"declared": {"held_out_fraction": 0.5}}, "held_out_fraction"),
    ],
)
def test_a_killed_call_is_resumed_under_its_own_declaration_alone(method, monkeypatch, edit, field):
    release, read = method.release, []
    monkeypatch.setattr(method, "release", lambda *_: 1 / 0)
    with pytest.raises(PrivacyError, match="withheld"):
        run(notes("sun"), "notes")
    monkeypatch.setattr(method, "release", lambda *given: read.append(1) or release(*given))
    with pytest.raises(PrivacyError, match=rf"^{field}.*Nothing was read or charged"):
        run(notes("sun"), "notes", **edit)
    assert not read
    made = run(notes("sun"), "notes")
    paid = [e for e in made.entries if e.kind == "reserve" and e.asset.endswith("label_counts")]
    assert len(paid) == 1


@pytest.mark.parametrize(
    "declared", [{"budget": {"epsilon": 40.0}}, {"name": "other"}, {"source": {"path": "x"}}]
)
def test_what_an_argument_states_is_stated_once(declared):
    with pytest.raises(ValueError, match="Give it as the argument only"):
        run(notes("sun"), "notes", declared=declared)


def test_a_paid_stage_without_a_mechanism_is_no_plan(method, monkeypatch):
    monkeypatch.setattr(method, "plan", lambda self, _target: planned(self, {}, {}))
    with pytest.raises(TypeError, match="mechanism for each paid stage"):
        run(notes("sun"), "notes")


def test_a_ledger_of_ones_own_is_charged_and_the_installations_is_not(tmp_path):
    ledger = Ledger(f"sqlite:///{tmp_path / 'own.sqlite'}")
    ledger.reserve(make_request(), make_terms())
    made = run(notes("sun"), "notes", ledger=ledger, store=tmp_path / "releases")
    assert made.label["guarantee"]["epsilon"] <= 4.0
    assert {entry.cohort for entry in made.entries} == {"notes"}
    assert not charged()
