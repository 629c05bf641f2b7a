"""A package of a few rows, which no model wrote: what a verifier reads, and which rows it takes."""

import json
import os
import shutil
from functools import partial
from types import SimpleNamespace

import polars as pl
import pytest

from dpsynth_assets.exports import verification
from dpsynth_assets.exports.package import (
    PROOF_FILE,
    export_corpus,
    write_corpus,
    write_generator,
    write_package,
)
from dpsynth_assets.exports.verification import LONGEST_FILE, _refuse_bombs, verify_package
from dpsynth_assets.methods.dataset_plan import stage_request
from dpsynth_assets.methods.planning import plan_dataset
from dpsynth_assets.methods.stages import StageRelease
from dpsynth_assets.orchestration.assets.corpora import publish_corpus
from dpsynth_assets.orchestration.resources.stores import PrivacyLedger, ReleaseStore
from dpsynth_assets.privacy.guarantees import Cost, GuaranteeType, Release
from dpsynth_assets.records import refusals
from dpsynth_assets.records.columns import SourceError
from dpsynth_assets.releases.published_rows import candidate_behind, published_rows
from dpsynth_assets.releases.store import rows_digest
from dpsynth_assets.report.cards import CARD_FILE, LABEL_FILE, HubFacts
from dpsynth_assets.report.label import GENERATOR, corpus_label
from dpsynth_assets.run.runner import Runner
from dpsynth_assets_tests.assets.declared_cases import letters
from dpsynth_assets_tests.stored import release_once

HUB = HubFacts(license="cc0-1.0", language="en", classes={"label": ["billing", "delivery"]})
ROWS = pl.DataFrame({
    "text": ["The bill is wrong.", "The parcel is late.", "A bill again."],
    "label": ["billing", "delivery", "billing"], "origin": ["private", "private", "public"],
    "batch": [0, 1, 0], "n_tokens": [4, 4, 3],
})  # fmt: skip
KEPT = {"rules": ["language"], "candidates": 4, "acceptance_rate": 0.75, "turned_down": {}}


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    """A cohort whose corpus was released and published, and its package."""
    root = tmp_path_factory.mktemp("house")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DPSYNTH_HOME", str(root / "home"))
        patch.delenv("DPSYNTH_LEDGER_URL", raising=False)
        labels = {"label": ["billing", "delivery"]}
        spec = letters(columns={"labels": ["label"]}, public_facts={"labels": labels})
        plan = plan_dataset(spec)
        packager = Runner(plan=plan, ledger=PrivacyLedger().open(), store=ReleaseStore())
        planned = plan.methods[0]
        (stage,) = planned.plan.stages
        request = stage_request(spec, planned, stage, release="1", inputs={})
        cost = Cost(guarantee=GuaranteeType.DP, event=request.event)
        (root / "weights").mkdir()
        (root / "weights" / "model.safetensors").write_bytes(b"weights")
        made = StageRelease(facts=KEPT, rows=ROWS, files=root / "weights")
        stored = release_once(
            ledger=packager.ledger,
            store=packager.store,
            request=request,
            terms=plan.budget,
            plan=plan.releases,
            draw=lambda _: Release(value=made, cost=cost),
        )
        candidate = ROWS.with_columns(pl.lit(stored.reservation.id).alias("reservation"))
        publish_corpus(spec, planned, candidate, packager.ledger)
        export_corpus(packager, planned, root / "package", HUB)
        yield packager, planned, root / "package"


@pytest.fixture
def package(house, tmp_path):
    copy = tmp_path / "package"
    shutil.copytree(house[2], copy)
    return copy


@pytest.mark.parametrize("name", [PROOF_FILE, LABEL_FILE, CARD_FILE, "data/more"])
def test_a_package_that_does_not_end_is_not_read(package, name):
    """A folder behind a link is not listed, and readers of `data` follow it."""
    file = package / name
    for target in (None, "/dev/zero", "/nowhere", package.parent):
        file.unlink(missing_ok=True)
        file.symlink_to(target) if target else os.mkfifo(file)
        (problem,) = verify_package(package).problems
        assert problem == f"{name}: expected a file or a folder, got something else."
    file.unlink()
    with file.open("wb") as sparse:
        sparse.truncate(LONGEST_FILE + 1)
    (problem,) = verify_package(package).problems
    assert problem.startswith(f"{name}: expected at most ")


@pytest.mark.parametrize("bound", ["ROWS", "BYTES"])
def test_rows_that_unpack_to_more_than_their_file_can_mean_are_not_read(
    package, monkeypatch, bound
):
    """26 kB of Parquet hold ten million rows."""
    monkeypatch.setattr(refusals, f"UNSUSPICIOUS_{bound}", 0)
    monkeypatch.setattr(refusals, "LARGEST_ROWS_PER_BYTE", 0)
    monkeypatch.setattr(refusals, "LARGEST_RATIO", 0)
    monkeypatch.setattr(pl, "read_parquet", lambda _: pytest.fail("read whole"))
    (problem,) = verify_package(package).problems
    assert problem == "rows: expected the content of the paid release, got another."
    (rows,) = (package / "data").iterdir()
    for named in ("rows.bin", "rows.PARQUET"):  # Polars reads a folder's files by any name.
        rows = rows.rename(package / "data" / named)
        with pytest.raises(SourceError):
            _refuse_bombs(package / "data")
    with pytest.raises(SourceError):
        _refuse_bombs(rows)


def test_a_package_agrees_and_a_proof_with_a_key_twice_is_not_read(package):
    assert verify_package(package).problems == ()
    text = (package / PROOF_FILE).read_text()
    (package / PROOF_FILE).write_text('{"head": "Ottoline",' + text[1:])
    (problem,) = verify_package(package).problems
    assert problem.startswith(f"{PROOF_FILE}: expected a readable proof")


def packed(house, target, changed_rows=lambda rows: rows, **changes):
    """Packs the published rows again, changed, as who owns the ledger can; returns the head."""
    packager, planned, honest = house
    label = json.loads((honest / LABEL_FILE).read_text()) | changes
    rows = changed_rows(pl.read_parquet(honest / "data"))
    fill = partial(write_corpus, label=label, rows=rows, hub=HUB)
    return write_package(packager, target, folder=planned.folder, label=label, hub=HUB, fill=fill)


OWN = ("origin", "method", "id")


@pytest.mark.parametrize(
    "lie",
    [
        *(
            lambda rows, column=column: rows.with_columns(pl.lit("billing").alias(column))
            for column in ("text", "label", *(f"dpsynth_{name}" for name in OWN), "note")
        ),
        lambda rows: rows.head(2),
        lambda rows: rows.reverse(),
        lambda rows: rows.drop("dpsynth_origin"),
    ],
)
def test_a_true_label_on_other_rows_is_found(house, tmp_path, lie):
    """Who owns the ledger packs them himself, so that every digest of the export is true."""
    head = packed(house, tmp_path / "lie", lie)
    found = verify_package(tmp_path / "lie", head.root)
    assert found.problems == ("rows: expected the content of the paid release, got another.",)


@pytest.mark.parametrize(
    "changes", [{"acceptance_rate": 1.0}, {"rules": ["Ottoline"]}, {"note": "Ottoline"}]
)
def test_another_word_on_which_rows_were_kept_is_found(house, tmp_path, changes):
    assert json.loads((house[2] / LABEL_FILE).read_text())["kept_rows"] == KEPT
    packed(house, tmp_path / "lie", kept_rows=KEPT | changes)
    (problem,) = verify_package(tmp_path / "lie").problems
    assert problem.startswith(f"{LABEL_FILE}: kept_rows differs")


@pytest.mark.parametrize("head", ["Ottoline", "0" * 64 + "\n"])
def test_the_head_of_the_whole_ledger_is_a_digest(house, tmp_path, head):
    cohort = json.loads((house[2] / LABEL_FILE).read_text())["cohort"]
    packed(house, tmp_path / "lie", cohort=cohort | {"ledger_head": head})
    (problem,) = verify_package(tmp_path / "lie").problems
    assert problem.startswith(f"{LABEL_FILE}: expected a privacy label")


def in_parquet(folder):
    (file,) = (folder / "data").iterdir()
    pl.read_parquet(file).write_parquet(file, metadata={"note": "Ottoline"})


def before_footer(folder):
    """Where no reader looks: the last 8 bytes of a Parquet file say where its footer begins."""
    (file,) = (folder / "data").iterdir()
    content = file.read_bytes()
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    file.write_bytes(content[:footer] + b"Ottoline" + content[footer:])


def key_twice(folder):
    text = (folder / LABEL_FILE).read_text()
    (folder / LABEL_FILE).write_text('{"guarantee": {"epsilon": 0.01},' + text[1:])


def beside_rows(folder):
    (folder / "data2").mkdir()
    ROWS.write_parquet(folder / "data2" / "train-1.parquet")


@pytest.mark.parametrize(
    ("lie", "name"),
    [
        (lambda folder: (folder / "notes.txt").write_text("Ottoline"), "notes.txt"),
        (beside_rows, "data2/train-1.parquet"),
        (in_parquet, "data/train-00000-of-00001.parquet"),
        (before_footer, "data/train-00000-of-00001.parquet"),
        (key_twice, LABEL_FILE),
        (lambda folder: (folder / CARD_FILE).write_text("Ottoline"), CARD_FILE),
    ],
    ids=["file", "folder", "metadata", "unread", "twice", "card"],
)
def test_something_beside_true_rows_is_found(house, tmp_path, lie, name):
    """Who owns the ledger packs it himself, so that every digest of the export is true."""
    packager, planned, honest = house

    def fill(folder):
        shutil.copytree(honest, folder, dirs_exist_ok=True)
        (folder / PROOF_FILE).unlink()
        lie(folder)

    label = json.loads((honest / LABEL_FILE).read_text())
    told = {"folder": planned.folder, "label": label, "hub": HUB}
    write_package(packager, tmp_path / "lie", fill=fill, **told)
    (problem,) = verify_package(tmp_path / "lie").problems
    assert problem.startswith(f"{name}: expected")


def test_a_true_label_on_other_weights_is_found(house, tmp_path):
    packager, planned, honest = house
    paid = json.loads((honest / LABEL_FILE).read_text())["subject"]["reservation"]
    label = corpus_label(packager.ledger.entries(), paid, [], kind=GENERATOR)
    for name, content in (("true", b"weights"), ("lie", b"Ottoline")):
        weights = tmp_path / f"{name}_weights"
        weights.mkdir()
        (weights / "model.safetensors").write_bytes(content)
        told = {"label": label, "hub": HUB}
        fill = partial(write_generator, weights=weights, prompts={"billing": "B:"}, **told)
        write_package(packager, tmp_path / name, folder=planned.folder, fill=fill, **told)
    assert verify_package(tmp_path / "true").problems == ()
    (problem,) = verify_package(tmp_path / "lie").problems
    assert problem == "files: expected the content of the paid release, got another."


@pytest.mark.parametrize("labels", [(), ("label",), ("topic", "batch")])
def test_published_rows_lead_back_to_what_was_released(labels):
    columns = {"text": [], "id": "id", "labels": list(labels)}
    spec = SimpleNamespace(name="letters", columns=SimpleNamespace(**columns))
    planned = SimpleNamespace(folder="mean", method=SimpleNamespace(name="mean_uniform"))
    values = {0: [""] * 3, 1: ["a", "b", "a"], 2: ["a | x", "b", "a | y"]}[len(labels)]
    candidate = ROWS.with_columns(label=pl.Series(values), reservation=pl.lit("r"))
    made = published_rows(spec, planned, candidate)
    back = candidate_behind(made, "letters-mean", "mean_uniform")
    assert rows_digest(back) == rows_digest(candidate)


def test_a_release_without_the_digest_of_its_rows_shows_nothing_of_them(house):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verification, "ROWS", "a digest that no entry holds")
        (problem,) = verify_package(house[2]).problems
    assert "expected the content of the paid release" in problem
