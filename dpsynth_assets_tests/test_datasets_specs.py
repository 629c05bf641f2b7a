"""Laws of declarations: what a dataset file may say, and how a refusal reads."""

import pytest
from pydantic import ValidationError

from dpsynth_assets.datasets import PrivateDatasetSpec, PublicDataSpec
from dpsynth_assets.datasets.dataset_sections import PublicFactsSpec
from dpsynth_assets.datasets.fields import models_in
from dpsynth_assets.datasets.public_spec import EngineSpec
from dpsynth_assets.privacy.guarantees import NeighboringRelation, PrivacyUnit
from dpsynth_assets_tests.declared import private as declaration


def refusal(**changes):
    with pytest.raises(ValidationError) as caught:
        declaration(**changes)
    return str(caught.value)


def models(model):
    fields = model.model_fields.values()
    inner = {each for field in fields for each in models_in(field.annotation)}
    return {model}.union(*map(models, inner))


ALL_MODELS = sorted(models(PrivateDatasetSpec) | models(PublicDataSpec), key=lambda m: m.__name__)


@pytest.mark.parametrize("model", ALL_MODELS)
def test_every_model_is_frozen_and_strict_and_describes_every_field(model):
    assert model.model_config["extra"] == "forbid"
    assert model.model_config["frozen"]
    assert all(field.description for field in model.model_fields.values())


TWICE = [{"method": "m"}, {"method": "m"}]
TENTHS = [{"method": "m", "name": f"m{i}", "budget_share": 0.1} for i in range(10)]
REFUSED = [
    *(({"budget": {"epsilon": 1, "delta": delta}}, "delta") for delta in (0, 1, 1e-3, 0.5)),
    (
        {"budget": {"epsilon": 1, "delta": 1e-4}, "public_facts": {"records": 1001}},
        "delta <= 1 / (10 x 1001)",
    ),
    (
        {"methods": TENTHS, "cluster_histogram": {"budget_share": 0.01}},
        "a sum of at most 1, got 1.01",
    ),
    ({"methods": TWICE}, "'m' twice"),
    ({"topic_histogram": {"noise_std": 0.5}}, "greater than or equal to 1"),
    (
        {"schedule": {"cron": "0 3 1 * *", "methods": ["absent"]}},
        "names among mean_uniform, got absent",
    ),
    ({"columns": {"text": "body", "labels": ["text"]}}, "a name other than"),
    ({"columns": {"labels": ["dpsynth_id"]}}, "a name other than"),
    ({"public_facts": {"labels": {"stars": [1]}}}, "columns.labels"),
    ({"privacy_unit": {"column": "customer"}}, "bound on the records"),
    ({"privacy_unit": {"max_records": 2}}, "1, since the unit is one record"),
    ({"neighboring_relation": "zero-out"}, "public number of records"),
    ({"columns": {"text": "a", "id": "a"}}, "different names"),
    ({"privacy_unit": {"column": "text", "max_records": 1}}, "a column other than the text"),
    (
        {"neighboring_relation": "zero-out", "public_facts": {"records": 12, "slots": True}},
        "an id column",
    ),
]


@pytest.mark.parametrize(("changes", "told"), REFUSED)
def test_what_does_not_fit_together_is_refused(changes, told):
    assert told in refusal(**changes)


def test_what_fits_is_read():
    budget = {"epsilon": "1", "delta": "1e-4"}  # YAML 1.1 reads a float without a dot as text.
    assert declaration(budget=budget, public_facts={"records": 1000}).budget.delta == 1e-4
    assert declaration(methods=TENTHS).budget_shares == 1
    spec = declaration(privacy_unit={"column": "customer", "max_records": 3})
    assert spec.unit == PrivacyUnit(column="customer", max_records=3)
    spec = declaration(neighboring_relation="zero-out", public_facts={"records": 100})
    assert spec.neighboring_relation is NeighboringRelation.ZERO_OUT


def test_composite_labels_are_the_product_in_declared_order():
    spec = declaration(
        columns={"labels": ["stars", "kind"]},
        public_facts={"labels": {"kind": {"a": "an A", "b": "a B"}, "stars": [5, 1]}},
    )
    labels, texts = spec.composite_labels
    assert labels == ("5 | a", "5 | b", "1 | a", "1 | b")
    assert texts == ("5, an A", "5, a B", "1, an A", "1, a B")
    assert declaration().composite_labels == (("",), ("",))


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ([1, "1"], "look different"),
        (["a | b"], "without"),
        (["a\nb"], "on one line"),
        (["cafe", "ca\u200dfe"], "invisible characters"),
        (["cafe", "cafe\ufe0f"], "invisible characters"),
        (["caf\u00e9", "cafe\u0301"], "invisible characters"),
        ({"a": "one", "b": "o\u2060ne"}, "the same words twice"),
        ({"POS": "praise", "NEG": "praise"}, "the same words twice"),
        ({"POS": "NEG", "NEG": "POS"}, "words that are another value"),
    ],
)
def test_label_values_are_told_apart_by_everyone(values, told):
    assert told in refusal(columns={"labels": ["kind"]}, public_facts={"labels": {"kind": values}})


SMOLLM2 = {"language_model": {"kind": "smollm2"}}
LETTERS = {"domain": "Letters to a clinic"} | SMOLLM2
SOURCES = {"source": [{"source": {"path": "a.csv"}, "columns": {"text": "body"}}]}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (SOURCES | {"columns": {"text": "body"}}, "inside each source"),
        ({"language_model": {"kind": "pretrained"}}, "hub id or folder"),
        ({"language_model": {"kind": "smollm2", "model": "a/b"}}, "no model for kind: smollm2"),
        ({"language_model": {"tuning": "pretrained"}}, "none for kind: smollm2"),
        (SMOLLM2 | {"domain": "Let\nters"}, "on one line"),
        (SMOLLM2 | {"domain": "{examples}"}, "without braces"),
        ({"invented": {"documents": 20}}, "domain as well"),
        (SOURCES | LETTERS | {"invented": {"documents": 20}}, "documents without source"),
        *((LETTERS | {"invented": {"labels": own}}, "labels") for own in (["a", "a"], [" "])),
        *((LETTERS | {"invented": {"labels": own}}, "labels") for own in (["a\nb"], ["{label}"])),
    ],
)
def test_a_public_base_that_does_not_fit_together_is_refused(changes, told):
    with pytest.raises(ValidationError, match=told):
        PublicDataSpec(name="a", **changes)


def test_a_public_base_that_fits_is_read():
    assert PublicDataSpec(name="a").sources == ()
    assert PublicDataSpec(name="a", **SOURCES).sources[0].columns.text == "body"
    assert PublicDataSpec(name="a", **SMOLLM2).language_model.model is None
    base = {"kind": "pretrained", "model": "owner/name", "tuning": "pretrained"}
    assert not PublicDataSpec(name="a", language_model=base).language_model.asks
    for invents, fields in ((True, LETTERS), (False, SMOLLM2), (False, LETTERS | SOURCES)):
        assert PublicDataSpec(name="a", **fields).invents_documents == invents


def test_what_a_refusal_got_is_found_and_shows_no_key():
    with pytest.raises(ValidationError, match="got none"):
        PublicFactsSpec(labels={"a.b": []})
    with pytest.raises(ValidationError, match="got one") as refused:
        EngineSpec(kind="transformers", base_url="https://me:hunter2@host/v1")
    assert "hunter2" not in refused.value.errors()[0]["msg"]
