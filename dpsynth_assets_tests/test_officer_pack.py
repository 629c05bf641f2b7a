"""The officer's pack: every question is answered or asked back, by the ledger's numbers alone."""

import json

import pytest

from dpsynth_assets.exports.pack import ASKED, GUIDE, pack_of, write_pack
from dpsynth_assets.paths import home
from dpsynth_assets.privacy.directed_rounding import epsilon_up
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.ledger import Ledger
from dpsynth_assets.privacy.secret_protection import posterior_of_dp
from dpsynth_assets_tests.children import dpsynth
from dpsynth_assets_tests.declared import private, written
from dpsynth_assets_tests.privacy.ledger_cases import make_request, make_terms, release

REALISED = 0.123456789


@pytest.fixture
def ledger(own_datasets):
    return Ledger(home().ledger_url)


@pytest.fixture
def spec():
    return private(name="tickets")


def questions(pack):
    return [item for part in pack["parts"] for item in part["items"]]


def answers(spec, ledger):
    """Opening of each question -> its answer."""
    asked = questions(pack_of(spec, ledger))
    return {each["question"][:9]: " ".join(each["answer"]) for each in asked}


def test_every_question_is_answered_or_asked_of_a_person(ledger, spec):
    release(ledger)
    asked = questions(pack_of(spec, ledger))
    assert [q["question"].split(".")[0] for q in asked[:16]] == [str(n) for n in range(1, 17)]
    tests = ["Singling out", "Linkability", "Inference"]
    assert [q["question"].split(":")[0] for q in asked[16:19]] == tests
    assert all(q["answer"] and (q["behind"] or q["open"]) for q in asked)
    page = (write_pack(spec, ledger) / "officer_pack.html").read_text()
    assert page.count(ASKED) == sum(len(q["open"]) for q in asked)
    assert GUIDE in page


def test_its_numbers_are_those_of_the_ledger(ledger, spec):
    for number in range(2):
        release(ledger, asset=f"tickets/{number}/corpus")
    folder = write_pack(spec, ledger)
    facts = json.loads((folder / "officer_pack.json").read_text())["facts"]
    spend = ledger.spend("tickets")
    assert (facts["epsilon"], facts["delta"]) == (spend.guaranteed_epsilon, spend.delta)
    bound = posterior_of_dp(facts["epsilon"], facts["delta"], 0.1, adjacency="reference")
    assert facts["posteriors"][1] == {"before": 0.1, "after": bound}  # Of adding or removing.
    paid = [entry for entry in ledger.entries() if entry.kind == "reserve"]
    assert [charge["entry"] for charge in facts["charges"]] == [entry.seq for entry in paid]
    first = questions(pack_of(spec, ledger))[0]
    assert f"ε = {epsilon_up(spend.guaranteed_epsilon)} at" in first["answer"][0]
    assert first["behind"][0] == "Ledger: entries 1, 3"


def test_it_states_the_terms_of_now_and_those_of_charges(ledger):
    keys = [f"ed25519:{digit * 64}" for digit in "ab"]
    release(ledger, make_terms(epsilon=8.0))
    asks = {"approvals": 1, "approvers": keys, "budget": {"epsilon": 9.0, "delta": 1e-6}}
    found = answers(private(name="tickets", **asks), ledger)
    (terms,) = [found[each] for each in found if each.startswith("1.")]
    (approvals,) = [found[each] for each in found if each.startswith("14")]
    assert "now allows ε = 9 in all; at the last charge it allowed ε = 8." in terms
    assert "now asks for 1 of 2 approvals by keys other than the payer's" in approvals
    assert "Entry 1 asked for something else: no approval." in approvals


def test_under_replace_one_it_compares_contents(ledger, spec):
    release(ledger, make_terms(relation="replace-one"))
    found = answers(spec, ledger)
    for part in ("2. Which ", "Singling "):
        assert "with other content in the records of one unit" in found[part]
        assert "as without them" not in found[part]
    assert "but not its presence" in found["4. Is it "]


def test_a_realised_bound_is_in_no_file_and_no_epsilon_is_claimed(ledger, spec):
    request = make_request(guarantee=GuaranteeType.EX_POST, event=None)
    charged = ledger.reserve(request, make_terms(accepts_ex_post=True))
    stored = {"artifact_digest": "d", "artifact_uri": "u"}
    ledger.commit(charged, **stored, ex_post_epsilon=REALISED)
    folder = write_pack(spec, ledger)
    for file in folder.iterdir():
        assert str(REALISED)[:6] not in file.read_text()
        assert ledger.entries()[-1].hash not in file.read_text()
    pack = json.loads((folder / "officer_pack.json").read_text())
    assert pack["facts"]["epsilon"] is None
    assert all(q["answer"] or q["open"] for q in questions(pack))


def test_what_was_tried_is_listed_with_what_it_found(ledger, spec):
    release(ledger)
    tried = {"canaries-in-votes": True, "voting": False, "tickets/mean/median-gamma": None}
    results = [
        {"name": name, "kind": "", "passed": passed, "finished_at": "2026-11-01", "claim": "C."}
        | {"claimed": 1.0, "observed": 0.5, "measure": "x"}
        for name, passed in tried.items()
    ]
    label = home().released / "tickets" / "privacy_label.json"
    label.parent.mkdir(parents=True)
    label.write_text(json.dumps({"audits": results}))
    found = answers(spec, ledger)
    assert "canaries-in-votes: 2026-11-01, no evidence against" in found["Singling "]
    assert "median-gamma: not run" in found["Singling "]
    assert "1 of 3 audits" in found["9. How is"]
    assert "voting: REFUTED" in found["9. How is"]
    assert "REFUTED" in (write_pack(spec, ledger) / "officer_pack.html").read_text()


def test_a_cohort_without_charges_or_name_is_refused_in_one_line(ledger, own_datasets):
    release(ledger, cohort="others", dataset="others")
    written(own_datasets / "reviews.yaml", private().model_dump(mode="json"))
    for name in ("reviews", "nowhere"):
        result = dpsynth("statement", "--pack", name, code=2)
        assert result.output.count("Expected") == 1
