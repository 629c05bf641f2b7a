"""Texts of a declared schema that a language model writes and varies."""

from dataclasses import replace

import pytest
from mailboxes import public_rows

from dpsynth_assets.datasets import LanguageModelSpec
from dpsynth_assets.datasets.public_spec import EngineSpec
from dpsynth_assets.methods.base import priced
from dpsynth_assets.methods.evolution import AugPe
from dpsynth_assets.methods.evolution.apis import EngineApi, PublicModelApi, open_api, read_prompts
from dpsynth_assets.methods.evolution.prompts import PromptError
from dpsynth_assets.methods.registry import bound_method
from dpsynth_assets.models.engines.protocol import Generation, Provenance
from dpsynth_assets.models.prompt_templates import PromptTemplates, prompted
from dpsynth_assets_tests.methods.evolution.conftest import make_config, make_public, make_terms
from dpsynth_assets_tests.methods.test_text_form import DECLARED, FORM, RECORD

RANDOM = {"message_template": [{"content": "a review of {label}"}]}
VARIATION = {"message_template": [{"content": "{masked_sample}|{word_count}|{sample}|{tone}"}],
             "replacement_rules": [{"replacements": {"tone": ["calm", "loud"]}}]}  # fmt: skip
LABELS = ("Bars | 5", "Hotels | 1")
TERMS = make_terms(
    labels=LABELS, label_texts=("five star bars", "bad hotels"), engine=EngineSpec(model="a/b")
)


def engine_config(**changes):
    settings = {"api": "engine", "random_prompt": RANDOM, "variation_prompt": VARIATION}
    return make_config(**settings | changes)


class EchoEngine:
    """Says what it was asked, or nothing to prompts that hold `silence`."""

    name = "echo"

    def __init__(self):
        self.asked = []

    def generate(self, prompts, sampling, *, provenance=Provenance.PRIVATE, progress=None):
        self.asked.append((list(prompts), sampling, provenance))
        if progress is not None:
            progress(1.0)
        return [Generation("" if "silence" in p else f" {p} ", (), True) for p in prompts]


@pytest.fixture
def echo():
    return EchoEngine()


def open_with(echo, **changes):
    return open_api(engine_config(**changes), TERMS, make_public(engine=echo))


def test_random_texts_come_from_public_words_alone(echo):
    api = open_with(echo)
    assert isinstance(api, EngineApi)
    assert api.random(LABELS, seed=1) == ["a review of five star bars", "a review of bad hotels"]
    assert echo.asked[0][2] is Provenance.PUBLIC


def test_variations_are_marked_as_released_and_told_the_text(echo):
    (text,) = open_with(echo).vary(["one two three four"], LABELS[:1], degree=1.0, seed=1)
    blanked, words, sample, tone = text.split("|")
    assert (blanked, words, sample) == ("_ _ _ _", "4", "one two three four")
    assert tone in ("calm", "loud")
    assert echo.asked[0][2] is Provenance.RELEASED


def test_where_nothing_is_written_the_text_stays(echo):
    texts = open_with(echo).vary(["silence"], LABELS[:1], degree=0.01, seed=1)
    assert texts == ["silence"]


def test_a_row_is_asked_the_same_whatever_the_other_rows_are(echo):
    api = open_with(echo)
    texts = [f"one two three {n}" for n in range(6)]
    together = api.vary(texts, [LABELS[0]] * 6, degree=0.5, seed=3)
    assert api.vary(texts[:2], [LABELS[0]] * 2, degree=0.5, seed=3) == together[:2]


def test_prompts_are_checked_before_anything_is_charged():
    unknown = engine_config(random_prompt={"message_template": [{"content": "{category}"}]})
    with pytest.raises(PromptError, match=r"random_prompt: .* got category"):
        read_prompts(unknown, TERMS)
    missing = engine_config(random_prompt="no/such.json")
    assert "category" in priced(AugPe(unknown, TERMS), 1.0).refusal
    assert "no/such" in priced(AugPe(missing, TERMS), 1.0).refusal
    assert "engine.model" in priced(AugPe(engine_config(), make_terms()), 1.0).refusal
    assert priced(AugPe(engine_config(), TERMS), 1.0).refusal is None


def test_a_prompt_is_known_by_its_content(tmp_path):
    import json

    (tmp_path / "r.json").write_text(json.dumps(RANDOM))
    inline = AugPe(engine_config(), TERMS).settings()
    read = AugPe(engine_config(random_prompt=str(tmp_path / "r.json")), TERMS).settings()
    assert read == inline
    other = {"message_template": [{"content": "another {label}"}]}
    assert AugPe(engine_config(random_prompt=other), TERMS).settings() != inline


@pytest.mark.parametrize("changes", [{"api": "engine"}, {"random_prompt": RANDOM}])
def test_an_engine_has_prompts_and_no_other_writer_has(changes):
    with pytest.raises(ValueError, match="random_prompt"):
        make_config(**changes)


def model_api(model, **changes):
    texts = dict(zip(LABELS, TERMS.label_texts, strict=True))
    return PublicModelApi(model, texts, make_config(max_new_tokens=24, **changes))


def test_a_declared_start_of_texts_stays_one_start_through_variations(toy_model):
    start = "Good morning,"
    api = model_api(prompted(toy_model, PromptTemplates(text_start=start)))
    texts = api.random(LABELS, seed=1)
    for seed in range(3):
        texts = api.vary(texts, LABELS, degree=0.3, seed=seed)
    assert [text.count(start) for text in texts] == [1, 1]


def test_the_public_model_varies_the_end_of_a_text_and_keeps_its_beginning(toy_model):
    text = public_rows(3, seed=1)[2]["text"]
    tokens = toy_model.encode(text)[:24]
    for degree, kept in ((0.2, 0.7), (0.6, 0.1)):
        texts = model_api(toy_model).vary([text] * 12, [LABELS[0]] * 12, degree=degree, seed=5)
        beginning = toy_model.decode(tokens[: int(kept * len(tokens))])
        assert all(varied.startswith(beginning.strip()) for varied in texts)
        assert len(set(texts)) > 6


@pytest.mark.parametrize("decoder", ["exact", "transformers"])
def test_the_public_model_writes_by_the_decoder_that_its_base_declares(toy_model, decoder):
    declared = LanguageModelSpec(kind="smollm2", decoder=decoder)
    public = replace(make_public(), language_model=toy_model)
    api = open_api(make_config(max_new_tokens=8), make_terms(language_model=declared), public)
    assert api.engine.decoder.is_exact == (decoder == "exact")
    assert len(api.random(["x"] * 3, seed=1)) == 3


# Texts of a declared schema that a language model writes and varies.

TEMPLATES = PromptTemplates(text_start=FORM.text_start)


@pytest.fixture
def api(toy_model):
    writer = prompted(toy_model, TEMPLATES)
    config = make_config(max_new_tokens=80)
    return PublicModelApi(writer, {"a": "letter"}, config, form=FORM)


def test_random_texts_and_variations_are_records(api):
    texts = api.random(["a"] * 8, seed=1)
    assert len(list(filter(FORM.read, texts))) >= 6
    varied = api.vary([RECORD] * 8, ["a"] * 8, degree=0.3, seed=2)
    assert all(map(FORM.read, varied))
    assert all(text.startswith('{"kind":"loan",') for text in varied)
    assert len(set(varied)) > 2


def test_a_variation_of_what_is_no_record_begins_where_it_leaves_the_form(api):
    (varied,) = api.vary(['{"kind":"loan","stars":9,"note":"late"}'], ["a"], degree=0.1, seed=2)
    assert FORM.read(varied) == varied
    assert varied.startswith('{"kind":"loan","stars":')


def test_a_bound_that_no_record_fits_in_is_told_before_the_charge(toy_model):
    terms = make_terms(prompts=TEMPLATES, json_schema=DECLARED)
    method = bound_method("aug_pe", {"max_new_tokens": 4}, terms)
    (stage,) = method.stages()
    public = replace(make_public(), language_model=prompted(toy_model, TEMPLATES))
    with pytest.raises(ValueError, match="no trial text was complete"):
        stage.check(public)


def test_prompts_that_leave_no_room_for_a_text_are_told_before_the_charge(toy_model):
    terms = make_terms(label_texts=("words " * 5_000, "b"))
    method = bound_method("aug_pe", {}, terms)
    public = replace(make_public(), language_model=toy_model)
    with pytest.raises(ValueError, match="Shorten the domain, description or label words"):
        method.stages()[-1].check(public)
