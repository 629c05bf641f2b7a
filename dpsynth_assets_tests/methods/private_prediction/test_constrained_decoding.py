"""Texts of a declared schema: always whole, and free where the schema leaves no choice."""

import json
from dataclasses import replace

import jsonschema
import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from dpsynth_assets.attacks.median_audit import WatchedMedian
from dpsynth_assets.json_records import record_check
from dpsynth_assets.methods.base import priced
from dpsynth_assets.methods.inputs import PublicInputs
from dpsynth_assets.methods.private_prediction.loop import Draws, generate_documents
from dpsynth_assets.methods.private_prediction.references import generate_public_only
from dpsynth_assets.methods.registry import bound_method
from dpsynth_assets.models.decoding import JsonConstraint, sample_documents
from dpsynth_assets.models.engines.protocol import Sampling
from dpsynth_assets.models.transformers_decoder.decoder import TransformersDecoder
from dpsynth_assets.privacy.guarantees import NeighboringRelation
from dpsynth_assets.privacy.token_selection import NextLogits, PrivateTokenMeter
from dpsynth_assets_tests.methods.private_prediction.conftest import (
    HISTOGRAM,
    make_rules,
    make_terms,
)
from dpsynth_assets_tests.tiny_models import random_llama

SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "required": ["kind", "who", "stars"],
    "properties": {
        "kind": {"enum": ["short", "long"]},
        "who": {"type": "string", "minLength": 1, "maxLength": 4, "pattern": "^[a-z]{1,4}$"},
        "stars": {"type": "integer", "minimum": 1, "maximum": 5},
    },
}
COLUMNS, LONGEST = 40, 60
LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())
METHODS = {
    "mean_uniform": {},
    "mean_clustered": {},
    "median_clustered": {"matched_epsilon": 8.0},
    "mean_svt": {"svt_threshold": 0.5, "svt_noise_scale": 20.0},
    "invisible_ink": {"top_k": 20},
}


def spelling(words, merges=()):
    """A tokenizer of Rust's with these tokens, behind one that ends a text and one that fills."""
    known = {word: number for number, word in enumerate(["<end>", "<pad>", *words])}
    tokenizer = Tokenizer(models.BPE(vocab=known, merges=list(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<pad>")


class BytesModel:
    """A language model of random weights over bytes, with a tokenizer of Rust's."""

    def __init__(self):
        self.tokenizer = spelling([*LETTERS, "zz"], [("z", "z")])
        self.end_token_id, self.pad_token_id = 0, 1
        self.vocabulary_size = len(self.tokenizer) + 5  # Logits may be wider than the vocabulary.
        self.model = random_llama(self.vocabulary_size)

    def encode(self, text):
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def decode(self, ids):
        return self.tokenizer.decode(list(ids), skip_special_tokens=True)

    def prompt_ids(self, label_text, examples, max_example_tokens):
        ids = [self.pad_token_id]
        for text in examples:
            ids += [*self.encode(text)[:max_example_tokens], self.end_token_id]
        return ids + self.encode(label_text)


@pytest.fixture(scope="module")
def model():
    return BytesModel()


@pytest.fixture(scope="module")
def decoder(model):
    return TransformersDecoder(model.model)


@pytest.fixture(scope="module")
def constraint(model):
    return JsonConstraint(model, json.dumps(SCHEMA))


class Drawing:
    """Draws among the allowed tokens from a seed, whatever the logits are, and remembers them."""

    def __init__(self, seed=0):
        self._draw = np.random.default_rng(seed)
        self.asked = []

    def __call__(self, logits):
        self.asked.append((logits.active.tolist(), logits.allowed.tobytes()))
        assert logits.allowed.sum() > 1
        drawn = self._draw.choice(np.flatnonzero(logits.allowed), len(logits.active))
        return Draws.all_private(drawn)


def batches(seed):
    draw = np.random.default_rng(seed)
    return [[draw.integers(2, 200, 12).tolist() for _ in range(rows)] for rows in (3, 0, 2)]


def written(decoder, model, constraint, select=None, seed=1, **changes):
    """Documents of three batches, of which the second holds no record."""
    settings = {"tokens_per_batch": 30, "min_tokens_for_new_document": 8} | changes
    rules = make_rules(
        max_document_tokens=LONGEST, max_tokens_per_batch=400, prompt_columns=COLUMNS,
        end_token_id=model.end_token_id, constraint=constraint, **settings,
    )  # fmt: skip
    return generate_documents(decoder, batches(seed), select or Drawing(), rules)


def ended_by(word):
    """A model whose end token is one of words."""
    model = BytesModel()
    (model.end_token_id,) = model.encode(word)
    return model


def test_what_the_schema_decides_is_neither_asked_nor_paid(decoder, model, constraint):
    select = Drawing()
    documents = written(decoder, model, constraint, select)
    paid = sum(document.private_tokens for document in documents)
    assert paid == len(select.asked)
    tokens = sum(len(document.tokens) for document in documents)
    assert paid < 0.4 * tokens  # Keys and quotes are most of such a text.
    by_batch = np.bincount([document.batch for document in documents], minlength=3)
    assert (by_batch > 0).all()  # The batch without records writes, too.
    of_batch = np.bincount(
        [document.batch for document in documents],
        weights=[document.private_tokens for document in documents],
    )
    assert (of_batch <= 30).all()


def test_choices_follow_from_released_tokens_alone(decoder, model, constraint):
    asked = []
    for seed in (1, 2):  # Other records, the same draws.
        select = Drawing()
        written(decoder, model, constraint, select, seed)
        asked.append(select.asked)
    assert asked[0] == asked[1]


@pytest.mark.parametrize(
    ("schema", "got"),
    [
        ({"const": {"kind": "short"}}, "one text"),
        ({"$ref": "#"}, "no finite text"),
        (
            {"type": "object", "required": ["a"], "properties": {"a": {"$ref": "#"}}},
            "no finite text",
        ),
    ],
)
def test_a_schema_that_leaves_nothing_to_choose_is_refused(model, schema, got):
    with pytest.raises(ValueError, match=got):
        JsonConstraint(model, json.dumps(schema))


def test_a_batch_writes_what_is_decided_behind_its_last_private_token(decoder, model, constraint):
    """Nine draws: a record costs one to six, and its end is free."""
    nine = {"tokens_per_batch": 9, "min_tokens_for_new_document": 1}
    cut = []
    for seed in range(8):
        documents = written(decoder, model, constraint, Drawing(seed), **nine)
        cut += [document for document in documents if not document.finished]
    assert cut
    assert not any(constraint.open(document.tokens).is_decided for document in cut)


def test_the_end_token_ends_whole_texts_and_stands_in_no_other_place():
    model = ended_by("zz")
    constraint = JsonConstraint(model, json.dumps(SCHEMA))
    text = constraint.open()
    for token in model.encode('{"kind":"long","who":"b'):
        text.take(token)
    assert not text.choices()[model.end_token_id]
    with pytest.raises(ValueError, match="another one"):
        constraint.open(model.encode('{"kind":"long","who":"')).take(model.end_token_id)
    for token in model.encode('","stars":5}'):
        text.take(token)
    assert np.flatnonzero(text.choices()).tolist() == [model.end_token_id]


def test_what_the_schema_decides_is_spelled_without_the_end_token(decoder):
    model = ended_by("zz")
    schema = {"type": "object", "required": ["zzz", "a"], "additionalProperties": False}
    schema["properties"] = {"zzz": {"type": "boolean"}, "a": {"const": "zz"}}
    constraint = JsonConstraint(model, json.dumps(schema))
    documents = written(decoder, model, constraint)
    texts = {model.decode(d.tokens) for d in documents if d.finished}
    assert texts == {'{"zzz":true,"a":"zz"}', '{"zzz":false,"a":"zz"}'}


def test_a_text_that_needs_its_own_end_token_is_refused():
    model = ended_by("{")
    with pytest.raises(ValueError, match="no token is allowed"):
        JsonConstraint(model, json.dumps(SCHEMA))


def test_a_text_that_is_stuck_ends_without_an_error_and_is_no_record(decoder):
    """An error would tell of tokens that nobody has kept."""
    model = ended_by("}")
    constraint = JsonConstraint(model, json.dumps(SCHEMA))
    documents = written(decoder, model, constraint)
    assert any(document.finished for document in documents)
    assert not any(constraint.is_followed(model.decode(d.tokens)) for d in documents)


def test_a_tokenizer_that_cannot_be_read_is_refused_in_one_line():
    model = BytesModel()
    model.tokenizer = object()
    with pytest.raises(ValueError, match=r"Expected a tokenizer .* got object") as error:
        JsonConstraint(model, json.dumps(SCHEMA))
    assert "\n" not in str(error.value)


def test_a_constraint_opens_after_the_declared_start_and_spells_as_it_does(model):
    start = '{"kind": "'
    constraint = JsonConstraint(model, json.dumps(SCHEMA), start)
    text = constraint.open(model.encode("short"))
    written = "short"
    while (choices := text.choices()).sum() == 1:
        token = int(np.flatnonzero(choices)[0])
        text.take(token)
        written += model.decode([token])
    assert written == 'short", "who": "'
    with pytest.raises(ValueError, match="another one") as error:
        text.take(model.encode("!")[0])
    assert "!" not in str(error.value)


def test_samples_follow_the_schema_and_go_on_where_a_text_stands(decoder, model, constraint):
    begun = model.encode('{"kind":"long","who":"')
    prompts = [[model.pad_token_id], [model.pad_token_id, *begun], [model.pad_token_id]]
    sampled = sample_documents(
        decoder,
        model,
        prompts,
        Sampling(max_new_tokens=LONGEST, seed=3),
        texts=[constraint.open(), constraint.open(begun), constraint.open()],
    )
    texts = [model.decode(document) for document in sampled]
    texts[1] = model.decode(begun) + texts[1]
    for text in texts:
        jsonschema.validate(json.loads(text), SCHEMA)
    assert json.loads(texts[1])["kind"] == "long"


@pytest.fixture
def bound(cases):
    def bound(name, schema=SCHEMA, **more):
        settings = {
            "expected_batch_size": 8,
            "clip_bound": 2.0,
            "max_batches": 4,
            "max_document_tokens": LONGEST,
            "max_example_tokens": 12,
            "min_tokens_for_new_document": 8,
            "on_exhaustion": "finish_publicly",
            "logit_slack": 0.001,
            **METHODS[name],
            **more,
        }
        terms = cases.terms(accepts_ex_post=True, public_records=None)
        terms = replace(terms, json_schema=None if schema is None else json.dumps(schema))
        return bound_method(name, settings, terms)

    return bound


@pytest.mark.parametrize("name", METHODS)
def test_every_row_of_every_method_validates(name, bound, cases, model):
    method = bound(name)
    plan = method.plan(8.0)
    assert plan.refusal is None
    public = cases.clustered(model)
    done = cases.release(method, plan, cases.private(64), public)
    rows = done.value.rows
    assert len(rows) >= 4
    for text in rows["text"]:
        jsonschema.validate(json.loads(text), SCHEMA)
    facts = done.value.facts
    if name != "mean_svt":  # It alone draws public tokens; what a schema decides is no draw.
        assert facts["public_tokens"] == 0
    assert facts["private_tokens"] < facts["tokens"]


def test_the_floor_follows_the_schema(bound, cases, model):
    method = bound("mean_uniform")
    corpus = generate_public_only(method.config, method.terms, cases.public(model), 6, cases.silent)
    assert corpus.facts["documents"] == 6
    assert len(corpus.rows) > 0
    for text in corpus.rows["text"]:
        jsonschema.validate(json.loads(text), SCHEMA)


def test_a_text_that_its_length_cuts_off_is_no_row(bound, cases, model):
    short = len('{"kind":"short","who":"')
    method = bound("mean_uniform", max_document_tokens=short)
    done = cases.release(
        method,
        method.plan(8.0),
        cases.private(64),
        cases.public(model, cluster_histogram=HISTOGRAM),
    )
    assert len(done.value.rows) == 0


def test_the_median_charges_rounding_for_draws_of_every_batch_of_its_pass(bound, cases, model):
    """Batches draw at different steps; a record may move all of them."""
    method = bound("median_clustered", logit_slack=0.01, temperature=1.0, batches_per_forward=4)
    plan = method.plan(8.0)
    public = cases.clustered(model)
    done = cases.release(method, plan, cases.private(64), public)
    draws = done.value.facts["private_tokens"]
    by_batch = done.value.internal["ex_post_epsilon_by_batch"]
    assert len(by_batch) == 4  # One pass.
    assert (by_batch >= 4 * 0.01 * draws - 1e-9).all()


def test_an_exact_composition_of_draws_that_come_apart_is_refused_where_rounding_counts(bound):
    for name, schema in (("mean_uniform", SCHEMA), ("mean_svt", None)):
        method = bound(name, schema)
        tight = replace(method.terms, accountant="tight")
        refused = priced(type(method)(method.config, tight), 8.0).refusal
        assert "accountant: zcdp" in refused
        alone = method.config.model_copy(update={"batches_per_forward": 1})
        assert type(method)(alone, tight).plan(8.0).refusal is None
    free = bound("mean_uniform", None)
    tight = replace(free.terms, accountant="tight")
    assert type(free)(free.config, tight).plan(8.0).refusal is None


def test_planted_keys_are_written_whatever_the_schema_is(bound):
    from dpsynth_assets.methods.private_prediction.planted_keys import batches_task

    method = bound("mean_uniform", logit_slack=0.0001)
    task = batches_task(method, 8.0, BytesModel())
    assert task.method.terms.json_schema is None


def test_what_the_tokenizer_cannot_spell_ends_a_text_and_raises_nothing():
    schema = {"enum": ["xy", "qz", "r"]}
    model = BytesModel()
    model.tokenizer = spelling([each for each in LETTERS if each != "z"])
    constraint = JsonConstraint(model, json.dumps(schema))
    text = constraint.open(model.encode('"q'))
    assert np.flatnonzero(text.choices()).tolist() == [model.end_token_id]
    assert text.is_stuck
    text.take(model.end_token_id)
    with pytest.raises(ValueError, match="a model whose tokenizer spells every character"):
        JsonConstraint(model, json.dumps({"enum": ["zx", "zy"]}))


def test_a_bound_that_no_record_fits_in_is_told_before_the_charge(model):
    terms = replace(make_terms(), json_schema=json.dumps(SCHEMA))
    settings = {
        "max_document_tokens": 8, "min_tokens_for_new_document": 4, "max_batches": 2,
        "logit_slack": 0.001,
    }  # fmt: skip
    method = bound_method("mean_uniform", {**settings, "batches_per_forward": 1}, terms)
    (stage,) = method.stages()
    public = PublicInputs(language_model=model, salt="s", cluster_histogram=HISTOGRAM)
    with pytest.raises(ValueError, match="got none in 16 texts of the public prompt with 8 tokens"):
        stage.check(public)


def test_a_median_is_audited_on_the_allowed_tokens_alone():
    seen = []
    mechanism = WatchedMedian(
        clip_bound=2.0, temperature=1.0, relation=NeighboringRelation.ZERO_OUT,
        watch=lambda *drawn: seen.append(drawn),
    )  # fmt: skip
    allowed = np.zeros(9, dtype=bool)
    allowed[[2, 5, 7]] = True
    logits = torch.randn(4, 9, generator=torch.Generator().manual_seed(1))
    meter = PrivateTokenMeter(3, 1)
    owners = torch.zeros(4, dtype=torch.long)
    tokens, _ = mechanism.select(NextLogits(logits, owners, np.array([0]), allowed=allowed), meter)
    ((_, rows, place, _),) = seen
    assert rows.shape == (4, 3)
    assert [2, 5, 7][place] == tokens[0]


def test_a_number_larger_than_python_computes_is_no_record():
    follows = record_check({"type": "number", "multipleOf": 0.5})
    assert follows("1.5")
    assert not follows("1" * 400)


@pytest.mark.parametrize(
    ("text", "valid"),
    [("2026-01-02T03:04:05Z", True), ("2026-01-02", False), ("2026-13-02T03:04:05Z", False)],
)
def test_a_format_is_checked(text, valid):
    assert record_check({"format": "date-time"})(json.dumps(text)) is valid
