"""Methods that build on another corpus of the cohort: on its rows, or on the weights behind it."""

import sys
from pathlib import Path

import polars as pl
import pytest

from dpsynth_assets import PublicBase, run_method
from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.privacy.events import is_post_processing

ROOT = Path(__file__).parents[2]
EVOLUTION = {
    "population": 12, "variations": 2, "iterations": 2, "max_new_tokens": 16, "rows": 10,
}  # fmt: skip
PREDICTION = {
    "expected_batch_size": 16, "max_batches": 4, "batches_per_label": 2, "clip_bound": 4.5,
    "max_document_tokens": 8, "max_example_tokens": 24, "min_tokens_for_new_document": 2,
}  # fmt: skip
EPSILON = 60.0
FIRST = {"method": "aug_pe", "name": "first", "settings": EVOLUTION}


@pytest.fixture(scope="module")
def letters() -> tuple[pl.DataFrame, pl.DataFrame]:
    """Private letters of three kinds, and public ones."""
    sys.path.append(str(ROOT / "data" / "demo"))
    import mailboxes

    private = pl.DataFrame(mailboxes.private_rows(300, 1)).select("text", "label")
    public = pl.DataFrame(mailboxes.public_rows(300, 0)).select("text", "label")
    return private, public


@pytest.fixture(scope="module")
def one_home(tmp_path_factory):
    """Where the public base is made, and noise calibrated, once for all tests of this file."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture
def run(letters, toy_folder, toy_generator_folder, one_home, ledger, tmp_path, monkeypatch):
    """Runs a method over the letters, on a ledger of its own, behind `FIRST`."""
    monkeypatch.setenv("DPSYNTH_HOME", str(one_home))
    private, public = letters
    labels = tuple(sorted(private["label"].unique()))
    base = PublicBase(
        public,
        language_model={"kind": "pretrained", "model": str(toy_folder)},
        conditional_generator={"kind": "pretrained", "model": str(toy_generator_folder)},
    )

    def call(method, settings, behind=(FIRST,), **changes):
        return run_method(
            method,
            private,
            base,
            epsilon=EPSILON,
            delta=1e-6,
            settings=settings,
            labels=labels,
            cohort="letters",
            declared={"methods": [*behind]},
            ledger=ledger,
            store=tmp_path / "store",
            **changes,
        )

    call.ledger = ledger
    return call


TRAINING = {
    "steps": 2, "sampling_probability": 0.1, "rows": 12, "max_document_tokens": 24,
    "architecture": "decoder_only",
}  # fmt: skip
TUNED = {"method": "dp_fine_tuning", "name": "tuned", "settings": TRAINING}
STEERING = {
    "candidates": 8, "negatives": 8, "clip_documents": 10, "max_document_tokens": 24,
    "max_new_tokens": 16, "rows": 10, "layers": [0],
}  # fmt: skip
ON_GENERATOR = [
    ("epsvec_on_generator", {**STEERING, "generator": "tuned"}),
    (
        "mean_svt_on_generator",
        {**PREDICTION, "generator": "tuned", "max_tokens_per_batch": 60, "svt_noise_scale": 20.0},
    ),
]


@pytest.mark.parametrize(("method", "settings"), ON_GENERATOR)
def test_a_generator_takes_the_place_of_the_public_model(run, method, settings, monkeypatch):
    from dpsynth_assets.methods import on_generator

    opened, load = [], on_generator.load_language_model
    monkeypatch.setattr(
        on_generator,
        "load_language_model",
        lambda folder, **kind: opened.append(folder) or load(folder, **kind),
    )
    made = run(method, settings, behind=(TUNED,))
    weights = made.releases["tuned/finetuned_generator"]
    assert opened == [str(weights.folder)]
    (own,) = [each for each in made.plan.methods if each.method.name == method]
    (tuned,) = [each for each in made.plan.methods if each.folder == "tuned"]
    whole = made.label["guarantee"]["epsilon"]
    assert max(own.plan.epsilon, tuned.plan.epsilon) < whole <= EPSILON
    for stage in own.plan.stages:
        behind = list(made.plan.graph.events_behind(f"{own.folder}/{stage.name}"))
        assert tuned.plan.charges["finetuned_generator"] in behind
    assert run(method, settings, behind=(TUNED,)).reused


@pytest.mark.parametrize(("method", "settings"), ON_GENERATOR)
def test_a_corpus_without_fine_tuned_language_model_is_refused(run, method, settings):
    with pytest.raises(PrivacyError, match="which fine-tunes no model"):
        run(method, {**settings, "generator": "first"})
    encoder = {**TRAINING, "architecture": "encoder_decoder"}
    with pytest.raises(PrivacyError, match="which fine-tunes no model"):
        run(method, settings, behind=({**TUNED, "settings": encoder},))
    assert not run.ledger.entries()


def test_the_label_states_the_other_corpus_and_the_method_together(run):
    method, settings = "aug_pe_from_corpus", {**EVOLUTION, "corpus": "first"}
    made = run(method, settings)
    assert made.corpus.height > 0
    whole = made.label["guarantee"]["epsilon"]
    (own,) = [each for each in made.plan.methods if each.method.name == method]
    (first,) = [each for each in made.plan.methods if each.folder == "first"]
    assert whole > max(own.plan.epsilon, first.plan.epsilon)
    assert whole <= EPSILON
    behind = made.plan.graph.events_behind(f"{own.folder}/{own.plan.stages[-1].name}")
    assert list(behind) == [first.plan.charges["population"]]


@pytest.mark.parametrize(
    ("method", "settings", "behind", "folder"),
    [
        (*ON_GENERATOR[0], TUNED, "dataset_vectors"),
        (*ON_GENERATOR[1], TUNED, "language_model"),
        ("aug_pe_from_corpus", {**EVOLUTION, "corpus": "first"}, FIRST, "text_embedder"),
    ],
)
def test_a_folder_named_as_a_stage_takes_no_charge_off_the_label(
    run, method, settings, behind, folder
):
    name = "generator" if "generator" in settings else "corpus"
    made = run(method, {**settings, name: folder}, behind=({**behind, "name": folder},))
    entries = run.ledger.entries()
    paid = {e.asset for e in entries if e.kind == "reserve" and not is_post_processing(e.event)}
    stated = {m["asset"] for m in made.label["mechanisms"] if m["epsilon_alone"]}
    assert stated == paid
    assert len(paid) > 1


def test_other_rows_of_the_generator_pay_for_no_other_vectors(run):
    method, settings = ON_GENERATOR[0]
    run(method, settings, behind=(TUNED,))
    paid = [e.asset for e in run.ledger.entries() if e.event and not is_post_processing(e.event)]
    more = {**TUNED, "settings": {**TRAINING, "rows": 16}}
    run(method, settings, behind=(more,))
    again = [e.asset for e in run.ledger.entries() if e.event and not is_post_processing(e.event)]
    assert again == paid
