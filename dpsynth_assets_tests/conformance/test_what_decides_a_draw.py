"""A charge is known by everything that decides the draw: the table of docs/privacy.md, by field.

Every field of a dataset file and of a public base is edited between a kill and the resume. The bug
of old kept nothing with the charge: edits of the batch map then drew on under it.
"""

import re
import typing
from pathlib import Path
from types import SimpleNamespace

import polars as pl
import pytest
from pydantic import BaseModel

from dpsynth_assets.datasets import PrivateDatasetSpec, PublicDataSpec
from dpsynth_assets.methods.dataset_plan import stage_request
from dpsynth_assets.methods.planning import plan_dataset
from dpsynth_assets.methods.provenance import Node
from dpsynth_assets.methods.registry import REGISTRY
from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.privacy.ledger import Ledger
from dpsynth_assets.public_base.making import model_files
from dpsynth_assets.releases.store import StoredReleases
from dpsynth_assets.releases.waiting import first_difference
from dpsynth_assets.sensitive.private_files import files_below
from dpsynth_assets.sensitive.unfinished import StoredPasses
from dpsynth_assets_tests.stored import release_once

DOCS = Path(__file__).parents[2] / "docs" / "privacy.md"

SPEC = {
    "name": "letters",
    "source": {"path": "letters.csv"},
    "columns": {"text": "text", "id": "number", "labels": ["topic"]},
    "public_facts": {"labels": {"topic": ["money", "health"]}, "records": 4000},
    "budget": {"epsilon": 8, "delta": 1e-6},
    "methods": [
        {"method": "mean_uniform", "budget_share": 0.5},
        {"method": "mean_uniform", "name": "second", "budget_share": 0.4},
    ],
}


class Killed(BaseException):
    pass


def models_in(annotation):
    """The declarations that a field holds, in lists, dictionaries and unions too."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for part in typing.get_args(annotation) for found in models_in(part)]


def fields_of(model, path=""):
    """Every field of a declaration that holds no declaration itself, by its path."""
    for name, field in model.model_fields.items():
        place = f"{path}.{name}".removeprefix(".")
        inner = models_in(field.annotation)
        for each in inner:
            yield from fields_of(each, place)
        if not inner:
            yield place


DATASET = sorted(set(fields_of(PrivateDatasetSpec)))
BASE = sorted(set(fields_of(PublicDataSpec)))


def rows_of_table():
    """What the documents say of each field: `digest`, `request` or `nothing`."""
    section = DOCS.read_text().split("What a charge is known by")[1].split("\n## ")[0]
    rows = {}
    for line in section.splitlines():
        if line.startswith("| ") and not line.startswith("| decided by"):
            decided, stands = line.strip("| ").rsplit(" | ", 1)
            place = re.match(r"request|digest|nothing", stands).group()
            rows |= dict.fromkeys(re.findall(r"`([a-z_.]+)`", decided), place)
    return rows


TABLE = rows_of_table()
RUNS = re.compile(
    r"(engine|language_model|conditional_generator)\.(device|batch_rows|tensor_.*|memory_.*"
    r"|cache_gib|api_key_variable|concurrency|timeout_.*|attempts|price_.*|cost_limit)$"
)
"""The row that names `device` and what else says where an engine runs."""


def stands(field):
    if RUNS.search(field):
        return "nothing"
    parts = field.split(".")
    names = [".".join(parts[:end]) for end in range(len(parts), 0, -1)]
    return next((TABLE[name] for name in names if name in TABLE), None)


def placed(values, path, value, *, over=True):
    """Puts a value at a path of a written declaration, through sections that are left out."""
    name, *rest = path
    inner = values if isinstance(values, dict) else {}
    if rest:
        return {**inner, name: placed(inner.get(name), rest, value, over=over)}
    return inner if name in inner and not over else {**inner, name: value}


class Written:
    """A declaration that is read by what it writes alone, so that any field can be edited."""

    def __init__(self, spec, fields, edited=""):
        self.spec, self.fields, self.edited = spec, fields, edited

    def model_dump(self, *, exclude=frozenset(), **_):
        written = self.spec.model_dump(mode="json", exclude=exclude)
        for field in self.fields:
            if field.split(".")[0] not in exclude:
                path, edited = field.split("."), field == self.edited
                written = placed(written, path, "edited" if edited else "declared", over=edited)
        return written

    @property
    def composite_labels(self):
        return self.spec.composite_labels


PLAN = plan_dataset(PrivateDatasetSpec.model_validate(SPEC), PublicDataSpec(name="demo"))


def drawn_from(spec, base, part):
    return Node(spec, base, part, None, {}, {}).drawn_from


def facts(dataset="", base=""):
    spec = PrivateDatasetSpec.model_validate(SPEC)
    declared = Written(PublicDataSpec(name="demo"), BASE, base)
    return drawn_from(Written(spec, DATASET, dataset), declared, PLAN.methods[0])


def request(changes):
    spec = PrivateDatasetSpec.model_validate(SPEC | changes)
    planned = plan_dataset(spec, PublicDataSpec(name="demo", domain="Letters")).methods[0]
    return stage_request(spec, planned, planned.plan.stages[0], release="1")


REQUEST = request({})


class Installation:
    """A ledger and stores in a folder, and a run that was killed after its charge."""

    def __init__(self, folder):
        self.ledger = Ledger(f"sqlite:///{folder}/ledger.db")
        self.store = StoredReleases(folder / "releases")
        self.folder = folder / "sensitive" / "passes"
        self.folder.parent.mkdir(mode=0o700)
        self.draws = 0

    def run(self, known):
        def draw(reservation):
            self.draws += 1
            raise Killed

        release_once(
            ledger=self.ledger,
            store=self.store,
            request=REQUEST,
            terms=PLAN.budget,
            plan=PLAN.releases,
            draw=draw,
            passes=lambda it: StoredPasses(files_below(self.folder.parent), self.folder / it.id),
            drawn_from=lambda: known,
        )

    def outcome(self, known):
        """What a resume under these facts does: refuses in one line, or draws on."""
        before = self.draws
        with pytest.raises((Killed, PrivacyError)) as ended:
            self.run(known)
        assert self.ledger.count_charges() == 1
        assert (self.draws > before) == (ended.type is Killed)
        assert "\n" not in str(ended.value)
        return "drawn on" if ended.type is Killed else str(ended.value)


@pytest.fixture
def killed(tmp_path):
    house = Installation(tmp_path)
    assert house.outcome(facts()) == "drawn on"
    return house


def test_every_field_has_a_row():
    assert [field for field in DATASET + BASE if stands(field) is None] == []


def test_each_field_edited_after_a_kill_does_what_the_table_says(killed):
    for kind, fields in (("dataset", DATASET), ("base", BASE)):
        for field in fields:
            place = stands("public_data" if field == "name" and kind == "base" else field)
            base_of_another_name = {"base": "name"} if field == "public_data" else {}
            outcome = killed.outcome(facts(**{kind: field}, **base_of_another_name))
            if place == "nothing":
                assert outcome == "drawn on", field
            elif place == "digest":
                assert outcome.startswith(("public_data." if kind == "base" else "") + field[:6])
                assert "Nothing was read or charged. Restore it" in outcome, field


@pytest.mark.parametrize(
    "changes",
    [
        {"budget": {"epsilon": 4, "delta": 1e-6}},
        {"budget": {"epsilon": 8, "delta": 1e-7}},
        {"budget": {"epsilon": 8, "delta": 1e-6, "rounds": 3}},
        {"methods": [{**SPEC["methods"][0], "budget_share": 0.3}]},
        {"methods": [{**SPEC["methods"][0], "name": "third"}]},
        {"methods": [{"method": "mean_svt", "budget_share": 0.5, "name": "mean_uniform"}]},
        {"name": "notes"},
        {"description": "They are old."},
        {"shares_records_with": "notes"},
        {"neighboring_relation": "replace-one"},
        {"privacy_unit": {"column": "author", "max_records": 2}},
        {"source": {"path": "letters.csv", "version": "2"}},
    ],
)
def test_what_the_request_holds_is_charged_anew(changes):
    assert known_by(changes) != known_by({})


def known_by(changes):
    spec, asked = PrivateDatasetSpec.model_validate(SPEC | changes), request(changes)
    return asked.cohort, asked.key(spec.neighboring_relation, spec.unit)


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_each_setting_of_each_method_is_known_or_free(name):
    kind, free = REGISTRY[name], REGISTRY[name].free_settings
    for setting in kind.config_type.model_fields:
        written = dict.fromkeys(kind.config_type.model_fields)

        def known(values):
            config = SimpleNamespace(model_dump=lambda **_: values)
            planned = SimpleNamespace(method=SimpleNamespace(config=config, free_settings=free))
            return drawn_from(PrivateDatasetSpec.model_validate(SPEC), None, planned)

        differs = first_difference(known(written), known({**written, setting: "edited"}))
        assert (differs is None) == (setting in free)


def test_labels_in_another_order_are_another_batch_map(killed):
    swapped = {"labels": {"topic": ["health", "money"]}, "records": 4000}
    spec = PrivateDatasetSpec.model_validate(SPEC | {"public_facts": swapped})
    base = Written(PublicDataSpec(name="demo"), BASE)
    now = drawn_from(Written(spec, DATASET), base, PLAN.methods[0])
    assert killed.outcome(now).startswith("public_facts.labels.topic: expected")
    assert killed.outcome(facts()) == "drawn on", "restored"


def test_records_that_differ_are_said_without_what_they_are_known_by(tmp_path):
    house = Installation(tmp_path)
    house.outcome({"records": "a1b2"})
    said = house.outcome({"records": "c3d4"})
    assert said.startswith("records: expected the records, as when letters/mean_uniform/")
    assert "a1b2" not in said
    assert "c3d4" not in said


def test_order_is_compared_and_equal_values_are_equal():
    assert first_difference({"a": {"x": 1, "y": 2}}, {"a": {"y": 2, "x": 1}})[0] == "a"
    assert first_difference({"a": [1, {"b": None}]}, {"a": [1, {"b": None}]}) is None
    assert first_difference({"a": 1}, {"a": 1, "b": 2}) == ("b", None, 2)


def test_a_model_is_known_by_the_bytes_of_its_files(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "tokenizer.json").write_text("{}")
    values = {"public_language_model": {"path": str(tmp_path / "model")}, "documents": pl.Series()}
    first = model_files(values, None)
    assert list(first) == ["public_language_model"]
    (tmp_path / "model" / "tokenizer.json").write_text("[]")
    assert model_files(values, None) != first
