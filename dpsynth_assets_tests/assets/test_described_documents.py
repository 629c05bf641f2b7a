"""A public base may have a language model describe its documents before the generator trains."""

import polars as pl
import pytest
from pydantic import ValidationError

from dpsynth_assets.datasets import PublicDataSpec
from dpsynth_assets.models.conditional_generator import training
from dpsynth_assets.models.engines import Generation
from dpsynth_assets.public_base import making

DESCRIBER = {"kind": "openai", "base_url": "http://localhost:1/v1", "model": "describer"}


class Models:
    """Opens one engine, which says of every document that it is a memo."""

    def __init__(self):
        self.asked = 0

    def engine(self, spec, language_model):
        assert spec.model == "describer"
        assert language_model is None
        return self

    def generate(self, prompts, sampling, *, provenance, progress=None):
        self.asked += len(prompts)
        return [Generation("Memo\nKeywords: a, b", (), True) for _ in prompts]


@pytest.fixture
def trained(monkeypatch, tmp_path):
    """Runs the training of a base with a stand-in for the training itself: (models, aspects)."""
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path))
    seen = []

    def train(documents, keywords, folder, settings, report, *, aspects):
        seen.append(aspects)
        return {"perplexity": 2.0}

    monkeypatch.setattr(training, "train_conditional_generator", train)

    def run(generator):
        spec = PublicDataSpec(name="base", conditional_generator=generator)
        models, documents = Models(), pl.DataFrame({"text": ["one", "two"]})
        making.trained_generator(
            spec, documents, [(), ()], "topics/1", models, lambda _share, _said: None
        )
        return models, seen

    return run


def test_a_declared_model_describes_every_document_once(trained):
    models, seen = trained({"aspects": DESCRIBER})
    assert models.asked == 2
    assert [each["Document Type"] for each in seen[0]] == ["Memo", "Memo"]
    again, seen = trained({"aspects": DESCRIBER})
    assert again.asked == 0
    assert len(seen) == 1


def test_without_one_nobody_is_asked(trained):
    models, seen = trained({})
    assert models.asked == 0
    assert seen == [None]


@pytest.mark.parametrize(
    "generator",
    [
        {"aspects": {"kind": "transformers"}},
        {"kind": "pretrained", "model": "some/weights", "aspects": DESCRIBER},
    ],
    ids=["no model", "weights that are not trained here"],
)
def test_a_describer_without_use_is_refused(generator):
    with pytest.raises(ValidationError, match="engine with a model"):
        PublicDataSpec(name="base", conditional_generator=generator)
