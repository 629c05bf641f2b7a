"""Packages that leave: what a stranger opens, and what a verifier without the ledger refuses."""

import json
import shutil

import polars as pl
import pytest
from typer.testing import CliRunner

from dpsynth_assets.cli import report as command
from dpsynth_assets.cli.main import app
from dpsynth_assets.exports import verification
from dpsynth_assets.exports.package import PROOF_FILE, LedgerProof
from dpsynth_assets.exports.verification import verify_package
from dpsynth_assets.files.whole import file_digests
from dpsynth_assets.orchestration.assets.audit_trail import audit_trail
from dpsynth_assets.orchestration.resources.stores import ReleaseStore
from dpsynth_assets.privacy.ledger import Ledger
from dpsynth_assets.privacy.ledger.proof import ProvenEntry, proven
from dpsynth_assets.privacy.ledger.schema import canonical_json
from dpsynth_assets.report import attack_record
from dpsynth_assets.report.cards import CARD_FILE, LABEL_FILE, HubFacts, hub_dataset_card
from dpsynth_assets.report.label import corpus_label
from dpsynth_assets_tests.declared import audit_result

DP, EX_POST = "mean_uniform", "mean_svt"


@pytest.fixture(scope="module")
def exported(house, tmp_path_factory):
    """Both packages of a copy of the house, and what the command said."""
    assert house.result.success
    root = tmp_path_factory.mktemp("exported")
    shutil.copytree(house.home, root / "home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DPSYNTH_HOME", str(root / "home"))
        patch.setattr(command, "find_cohort", lambda name: house.spec)
        said = {}
        for method in (DP, EX_POST):
            arguments = ["export", "letters", method, "--license", "cc0-1.0", "--language", "en"]
            result = CliRunner().invoke(app, [*arguments, "--output", str(root / method)])
            assert result.exit_code == 0, result.output
            said[method] = result.output
        yield root, said


@pytest.fixture
def copy(root, tmp_path):
    """The DP package, to alter."""
    return shutil.copytree(root / DP, tmp_path / "package")


@pytest.fixture
def root(exported):
    """The folder of both packages and of the home that they are from."""
    return exported[0]


def ledger_in(home):
    return Ledger(f"sqlite:///{home / 'ledger' / 'ledger.sqlite'}")


def entries(root):
    return ledger_in(root / "home").entries()


def shown_by(package):
    """The entries that a package's proof shows: those behind its label, and its own."""
    shown = json.loads((package / PROOF_FILE).read_text())["entries"]
    *behind, own = [ProvenEntry.from_json(each).entry for each in shown]
    return behind, own


def export(target, *options):
    return CliRunner().invoke(app, ["export", "letters", DP, *options, "--output", str(target)])


@pytest.mark.parametrize("method", [DP, EX_POST])
def test_a_package_agrees_with_itself_and_with_the_head_that_was_said(exported, method):
    root, said = exported
    found = verify_package(root / method)
    assert found.problems == ()
    assert found.head.root in said[method]
    assert verify_package(root / method, found.head.root).problems == ()
    (problem,) = verify_package(root / method, "00" * 32).problems
    assert "published head" in problem


def test_datasets_reads_rows_and_classes(root, tmp_path):
    datasets = pytest.importorskip("datasets")
    loaded = datasets.load_dataset(str(root / DP), cache_dir=str(tmp_path), split="train")
    published = pl.read_parquet(root / "home" / "released" / "letters" / DP / "data")
    assert loaded["text"][:] == published["text"].to_list()
    assert loaded.features["label"].names == ["billing", "delivery"]
    assert [loaded.features["label"].int2str(i) for i in loaded["label"]] == (
        published["label"].to_list()
    )


def test_every_altered_missing_or_added_file_is_refused(root, tmp_path):
    names = [path.relative_to(root / DP) for path in (root / DP).rglob("*") if path.is_file()]
    assert len(names) == 4
    for number, name in enumerate(names):
        for change in ("altered", "missing"):
            copy = tmp_path / f"{number}_{change}"
            shutil.copytree(root / DP, copy)
            if change == "missing":
                (copy / name).unlink()
            else:
                content = bytearray((copy / name).read_bytes())
                content[len(content) // 2] ^= 1
                (copy / name).write_bytes(content)
            problems = verify_package(copy).problems
            assert any(str(name) in problem for problem in problems), (name, change)
    shutil.copytree(root / DP, tmp_path / "added")
    (tmp_path / "added" / "data" / "more.parquet").write_bytes(b"")
    assert verify_package(tmp_path / "added").problems == (
        "data/more.parquet: expected no such file.",
    )


def test_a_file_may_be_a_link_as_the_cache_of_the_hub_has_it(root, copy):
    (file,) = (copy / "data").iterdir()
    file.unlink()
    file.symlink_to(next((root / DP / "data").iterdir()))
    assert verify_package(copy).problems == ()


def test_names_of_a_package_move_no_terminal(copy):
    (copy / "\x1b[2J\x1b[32mFiles agree\x07").write_text("x")
    result = CliRunner().invoke(app, ["verify", str(copy)])
    assert result.exit_code == 1
    assert "Files agree" in result.output
    assert result.output.replace("\n", "").isprintable()


def test_a_head_may_be_given_in_capitals(root):
    head = verify_package(root / DP).head.root
    for given in (head.upper(), f" {head}"):
        result = CliRunner().invoke(app, ["verify", str(root / DP), "--head", given])
        assert result.exit_code == 0, result.output


def changed(value):
    """Another value of the same kind."""
    if isinstance(value, bool) or value is None:
        return "x"
    if isinstance(value, int | float):
        return value + 1
    return value + "x" if isinstance(value, str) else [*value, "x"]


def leaves(document, path=()):
    """Places of all values of a JSON document."""
    inner = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in inner:
        if isinstance(value, dict | list) and value:
            yield from leaves(value, (*path, key))
        else:
            yield (*path, key)


@pytest.mark.parametrize("file", [PROOF_FILE, LABEL_FILE])
def test_every_altered_field_of_label_and_proof_is_refused(file, copy):
    original = (copy / file).read_text()
    places = list(leaves(json.loads(original)))
    assert len(places) > 100
    step = max(1, len(places) // 150)  # Paths repeat; every kind of field is among them.
    for place in places[::step] if file == PROOF_FILE else places:
        document = json.loads(original)
        inner = document
        for key in place[:-1]:
            inner = inner[key]
        inner[place[-1]] = changed(inner[place[-1]])
        (copy / file).write_text(json.dumps(document))
        assert verify_package(copy).problems, place


def beside(document):
    """Documents with something beside the proof, without a part of it, or in another form."""
    first, second, *rest = document["entries"]
    yield {**document, "entries": [{**first, "note": "no data of persons"}, second, *rest]}
    yield {**document, "entries": [second, first, *rest]}
    yield {**document, "entries": [first, second, *rest[:-1], rest[-2], rest[-1]]}
    yield {**document, "head": {**document["head"], "entries": document["head"]["entries"] + 0.5}}
    for number in range(len(document["entries"])):
        left = document["entries"][:number] + document["entries"][number + 1 :]
        yield {**document, "entries": left}
    for number in range(len(rest)):  # The count of the entries alone is right.
        twice = rest[:number] + rest[number + 1 : number + 2] + rest[number + 1 :]
        yield {**document, "entries": [first, second, *twice]}


def test_a_proof_holds_each_entry_once_and_nothing_else(copy):
    for document in beside(json.loads((copy / PROOF_FILE).read_text())):
        (copy / PROOF_FILE).write_text(json.dumps(document))
        assert verify_package(copy).problems, document
    (copy / PROOF_FILE).write_text("[" * 100_000)
    assert verify_package(copy).problems


def sealed(folder, before, shown, package):
    """Writes a proof that shows some of the entries of a ledger, which the export's ends."""
    package = package._replace(seq=len(before) + 1)
    head, all_of_them = proven([*before, package], [*shown, package])
    LedgerProof(head=head, package=package, entries=tuple(all_of_them)).write(folder)


def forged(folder, entries, package, behind):
    """Label, card and export entry made anew from some of the entries, under a tree of them all."""
    (folder / PROOF_FILE).unlink()
    label = json.loads((folder / LABEL_FILE).read_text())
    made = corpus_label(behind, label["subject"]["reservation"], label["audits"], linked=False)
    made["cohort"]["ledger_head"] = label["cohort"]["ledger_head"]  # No proof shows its hash.
    (folder / LABEL_FILE).write_text(json.dumps(made, indent=2, sort_keys=True))
    rows, hub = pl.read_parquet(folder / "data"), HubFacts(**package.parameters["card"])
    (folder / CARD_FILE).write_text(hub_dataset_card(made, rows, hub))
    facts = {"files": file_digests(folder), "entries_behind": len(behind)}
    told = canonical_json(package.parameters | facts)
    sealed(folder, entries, behind, package._replace(parameters_json=told))
    return made["guarantee"]["epsilon"]


def test_a_label_without_a_charge_that_its_release_names_is_refused(root, tmp_path):
    """Not even who writes the export's entry himself can leave out what entries before it name."""
    entries, package = shown_by(root / DP)
    (histogram, *_) = [e for e in entries if e.asset.endswith("/cluster_histogram")]
    some = [each for each in entries if each.reservation != histogram.reservation]
    copies = [tmp_path / "whole", tmp_path / "part"]
    for copy in copies:
        shutil.copytree(root / DP, copy)
    told = [
        forged(copy, entries, package, b) for copy, b in zip(copies, (entries, some), strict=True)
    ]
    assert told[1] < told[0]
    assert verify_package(copies[0]).problems == ()
    (problem,) = verify_package(copies[1]).problems
    assert f"expected the charge {histogram.reservation}" in problem


def test_entries_of_other_cohorts_are_no_part_of_a_proof(copy):
    entries, package = shown_by(copy)
    other = entries[-1]._replace(seq=len(entries) + 1, cohort="other")
    sealed(copy, [*entries, other], [*entries, other], package)
    (problem,) = verify_package(copy).problems
    assert "further ones" in problem


def test_a_forged_entry_gets_one_line(copy):
    entries, package = shown_by(copy)
    for parameters in ("{}", "[]", "null", '{"files": []}'):
        sealed(copy, entries, entries, package._replace(parameters_json=parameters))
        assert verify_package(copy).problems


def test_another_library_of_accountants_is_named(root, monkeypatch):
    monkeypatch.setattr(verification, "LIBRARY", "dp_accounting 9.9")
    (problem,) = verify_package(root / DP).problems
    assert "this is dpsynth_assets" in problem
    assert "dp_accounting 9.9" in problem


def test_no_private_value_and_no_place_of_the_owner_leaves(root):
    told = "".join((root / method / PROOF_FILE).read_text() for method in (DP, EX_POST))
    private = [e.ex_post_epsilon for e in entries(root) if e.ex_post_epsilon is not None]
    assert private
    for secret in [*map(repr, private), str(root), *(e.hash for e in entries(root))]:
        assert secret not in told
    assert "outcome" not in told


def test_exporting_again_charges_nothing_and_adds_no_line(root, house):
    before = entries(root)
    assert sum(e.mechanism == "export" and e.kind == "reserve" for e in before) == 2
    assert export(root / DP, "--license", "cc0-1.0", "--language", "en").exit_code == 0
    assert entries(root) == before
    spent = {ledger_in(home).spend("letters").epsilon for home in (root / "home", house.home)}
    assert len(spent) == 1


def test_altered_rows_in_the_released_folder_do_not_leave(root):
    (file,) = (root / "home" / "released" / "letters" / DP / "data").iterdir()
    original = file.read_bytes()
    pl.read_parquet(file).reverse().write_parquet(file)
    result = export(root / "again")
    file.write_bytes(original)
    assert result.exit_code != 0
    assert not (root / "again").exists()


def test_a_corpus_whose_claim_an_attack_has_refuted_since_does_not_leave(root):
    paid = json.loads((root / DP / LABEL_FILE).read_text())["subject"]["reservation"]
    of_it = [each for each in entries(root) if each.reservation == paid]
    (charge,) = [each for each in of_it if each.kind == "reserve"]
    settings = attack_record.settings_of_charge(charge)
    name = attack_record.attacks_on(charge)[0]["name"]
    refuted = audit_result(name, passed=False, settings=settings)
    kept = attack_record.attacks_file().read_bytes()
    attack_record.save_attacks([refuted])
    before = entries(root)
    asked = export(root / "refuted")
    attack_record.attacks_file().write_bytes(kept)
    assert asked.exit_code != 0
    assert not (root / "refuted").exists()
    assert entries(root) == before


def test_a_folder_with_somebodys_files_is_not_replaced(root, copy, tmp_path):
    (copy / ".git").mkdir()
    for mine in (tmp_path / "other" / "mine.txt", copy / ".git" / "config"):
        mine.parent.mkdir(exist_ok=True)
        mine.write_text("keep")
    for target in (tmp_path / "other", copy):
        assert export(target).exit_code != 0
    assert (tmp_path / "other" / "mine.txt").read_text() == "keep"
    assert (copy / ".git" / "config").read_text() == "keep"


def test_the_audit_trail_lists_what_left_and_agrees(root, house):
    store = ReleaseStore.at(str(root / "home" / "artifacts" / "releases"))
    trail = audit_trail("letters", ledger_in(root / "home"), store, house.instance)
    left = [spend for spend in trail.spends if spend.asset.endswith("/exported_corpus")]
    assert len(left) == 2
    assert [str(finding) for finding in trail.findings if "export" in str(finding)] == []
