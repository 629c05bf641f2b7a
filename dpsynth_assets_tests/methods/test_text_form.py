"""Records of a declared schema from every method that writes through an engine."""

import json
from dataclasses import replace

import pytest

from dpsynth_assets.datasets.public_spec import (
    ConditionalGeneratorSpec,
    EngineSpec,
    LanguageModelSpec,
)
from dpsynth_assets.methods.evolution.method import STAGE
from dpsynth_assets.methods.registry import bound_method
from dpsynth_assets.models.row_rules import SCHEMA, TextForm
from dpsynth_assets_tests.methods.evolution.conftest import make_terms

DECLARED = json.dumps(
    {
        "type": "object",
        "properties": {
            "kind": {"enum": ["card", "loan"]},
            "stars": {"type": "integer", "minimum": 1, "maximum": 5},
            "note": {"type": "string", "pattern": "^[a-z]{1,6}$"},
        },
        "required": ["kind", "stars", "note"],
        "additionalProperties": False,
    }
)
FORM = TextForm(DECLARED, '{"kind":')
RECORD = '{"kind":"loan","stars":4,"note":"late"}'
GENERATOR = ConditionalGeneratorSpec(kind="language_model")
MODEL = LanguageModelSpec(kind="smollm2")  # The exact decoder, so no rounding is charged.


@pytest.mark.parametrize(
    "text",
    [RECORD[:-1], "", "late", RECORD.replace("4", "NaN"), RECORD.replace("4", "6"), "[" * 9999],
)
def test_what_is_no_record_is_left_out(text):
    assert FORM.read(text) == ""
    assert FORM.read(RECORD) == RECORD


@pytest.mark.parametrize("name", ["aug_pe", "epsvec", "ctcl", "dp_fine_tuning", "mean_uniform"])
def test_a_plan_names_the_schema_where_texts_follow_it(name):
    free = make_terms(public_records=4_000, generator=GENERATOR, language_model=MODEL)
    schemas = (None, DECLARED, DECLARED.replace("loan", "debt"))
    plans = [bound_method(name, {}, replace(free, json_schema=each)).plan(8.0) for each in schemas]
    none, one, another = (plan.parameters.get(SCHEMA) for plan in plans)
    assert none is None
    assert None not in (one, another)
    assert one != another


def test_training_does_not_depend_on_what_constrains_the_writing_of_rows():
    free = make_terms(public_records=4_000, generator=GENERATOR, language_model=MODEL)
    stages = [
        bound_method("ctcl", {}, terms).plan(8.0).stages[0]
        for terms in (free, replace(free, json_schema=DECLARED))
    ]
    assert stages[0].settings == stages[1].settings
    population, other = (
        bound_method("aug_pe", {}, terms).plan(8.0).stages[0]
        for terms in (free, replace(free, json_schema=DECLARED))
    )
    assert population.name == STAGE
    assert population.settings != other.settings


@pytest.mark.parametrize(
    ("generator", "engine"),
    [
        ({"kind": "pretrained", "model": "a/b"}, EngineSpec(kind="transformers")),
        ({}, EngineSpec(kind="openai", model="m", base_url="https://host/v1")),
    ],
)
def test_what_the_packed_decoder_writes_is_free_text(generator, engine):
    terms = make_terms(
        public_records=4_000,
        json_schema=DECLARED,
        engine=engine,
        generator=ConditionalGeneratorSpec(**generator),
    )
    assert SCHEMA not in bound_method("ctcl", {}, terms).plan(8.0).parameters
