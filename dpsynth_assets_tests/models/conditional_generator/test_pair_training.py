"""Training on public pairs: it learns, resumes to the same bits, and leaves a folder that opens."""

import polars as pl
import pytest
from pydantic import ValidationError

from dpsynth_assets import PublicBase
from dpsynth_assets.datasets.public_spec import PairTrainingSpec, PublicDataSpec
from dpsynth_assets.models.conditional_generator.generator import (
    load_conditional_generator,
    per_example_loss,
)
from dpsynth_assets.models.conditional_generator.pair_training import (
    DiskCheckpoint,
    read_pairs,
    train_on_pairs,
)
from dpsynth_assets_tests.tiny_models import write_generator, write_language_model

TEXTS = ["The boiler is here.", "The violin is here."]
WRITERS = {"encoder-decoder": write_generator, "decoder": write_language_model}


@pytest.fixture(params=WRITERS)
def start(request, tmp_path):
    """A tiny random model of either kind: no pretrained encoder-decoder is at hand."""
    return WRITERS[request.param](tmp_path / "start", TEXTS * 20)


@pytest.fixture
def spec(tmp_path):
    rows = [{"kind": "Note", "words": [t.split()[1]], "text": t} for t in TEXTS * 12]
    pl.DataFrame(rows).write_parquet(tmp_path / "pairs.parquet", row_group_size=5)
    return PairTrainingSpec(
        path=str(tmp_path / "pairs.parquet"), document="text",
        aspects={"Document Type": "kind", "Keywords": "words"},
        steps=12, batch=7, together=4, learning_rate=1e-2, checkpoint_minutes=1e-9,
    )  # fmt: skip


class Killed(Exception):
    pass


def trained(start, spec, place, stop_at=None):
    """Losses told, until killed after a step."""
    told = []

    def report(_share, message):
        told.append(message)
        if len(told) == stop_at:
            raise Killed

    generator = load_conditional_generator(start, device="cpu")
    train_on_pairs(generator, spec, DiskCheckpoint(place), report)
    return told, {name: each.clone() for name, each in generator.model.state_dict().items()}


def test_a_killed_run_ends_with_the_weights_of_an_unbroken_one(start, spec, tmp_path):
    told, whole = trained(start, spec, tmp_path / "whole")
    with pytest.raises(Killed):
        trained(start, spec, tmp_path / "broken", stop_at=5)
    rest, resumed = trained(start, spec, tmp_path / "broken")
    assert rest == told[5:]
    assert all(each.equal(resumed[name]) for name, each in whole.items())
    first, last = (float(told[at].split()[-1]) for at in (0, -1))
    assert last < 0.8 * first
    other = spec.model_copy(update={"learning_rate": 1.0})
    with pytest.raises(ValueError, match="got one with another charge or other settings"):
        trained(start, other, tmp_path / "broken")


def test_another_documents_condition_explains_a_document_less(start, spec, tmp_path):
    generator = load_conditional_generator(start, device="cpu")
    longer = spec.model_copy(update={"steps": 150, "checkpoint_minutes": 9})
    train_on_pairs(generator, longer, DiskCheckpoint(tmp_path / "run"), lambda *_: None)
    encoder = generator.encoder
    documents = encoder.document_ids(TEXTS, 64)
    conditions = [f"Document Type: Note\nKeywords: {text.split()[1]}" for text in TEXTS]
    own, other = (
        per_example_loss(generator.model, encoder.pad(encoder.condition_ids(each, 64), documents))
        for each in (conditions, conditions[::-1])
    )
    assert other.min() > 10 * own.max()


def test_conditions_are_aspects_and_pairs_begin_anywhere(spec):
    pairs = read_pairs(spec)
    first = [next(pairs) for _ in range(30)]
    assert first[0] == ("Document Type: Note\nKeywords: boiler", "The boiler is here.")
    assert first[24:] == first[:6]
    for start in (3, 11, 27):
        later = read_pairs(spec, start)
        assert [next(later) for _ in range(2)] == [first[(start + k) % 24] for k in range(2)]


def test_bases_share_the_folder_of_a_generator_that_one_of_them_trained(
    start, spec, tmp_path, own_home
):
    named, documents = {"kind": "pretrained", "device": "cpu"}, pl.DataFrame({"text": TEXTS})
    pairs = spec.model_dump() | {"steps": 2}
    made = [
        PublicBase(documents, conditional_generator={**named, "model": str(start), "pairs": pairs})
        .values(["conditional_generator"])["conditional_generator"]["path"]
        for _ in range(2)
    ]  # fmt: skip
    assert made[0] == made[1]
    another = PublicBase(documents, name="b", conditional_generator={**named, "model": made[0]})
    generator = another.models.conditional_generator(another._value("conditional_generator"))
    assert len(generator.generate(["Keywords: boiler"], max_new_tokens=4)) == 1
    folder = generator.source
    suffixes = {each.suffix for each in tmp_path.joinpath(folder).iterdir()}
    assert suffixes <= {".safetensors", ".json", ".jinja"}
    assert not list((tmp_path / "home").rglob("state.json"))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"path": "/no/pairs.parquet"}, "Expected a Parquet file of pairs at /no/pairs.parquet"),
        ({"document": "body"}, "got none with column body"),
        ({"batch": 25}, "at least one batch of 25 pairs"),
    ],
)
def test_pairs_that_cannot_be_read_are_refused_in_one_line(spec, changes, said):
    with pytest.raises(ValueError, match=said) as refusal:
        next(read_pairs(spec.model_copy(update=changes)))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ({"conditional_generator": {"pairs": {"path": "p", "condition": "c"}}}, "language_model"),
        ({"conditional_generator": {"kind": "pretrained", "model": "a/b", "pairs": {"path": "p"}}},
         "condition or aspects, got neither"),
        ({"topic_model": {"folder": "f", "settings": {"seed": 1}}}, "none beside folder"),
    ],
)  # fmt: skip
def test_settings_that_would_be_ignored_are_refused(declared, said):
    with pytest.raises(ValidationError, match=said):
        PublicDataSpec(name="a", **declared)
