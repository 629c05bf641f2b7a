"""Public inputs alone tell what cannot be written; what they let through comes to its end."""

import inspect
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from dpsynth_assets.attacks.audits import save_results
from dpsynth_assets.attacks.audits.shared_passes import slack_audit
from dpsynth_assets.attacks.logit_moves import NAME, LogitMoves
from dpsynth_assets.methods.inputs import PublicInputs
from dpsynth_assets.methods.private_prediction import preconditions
from dpsynth_assets.methods.private_prediction.decoding import settings_of, slack_file
from dpsynth_assets.methods.registry import bound_method
from dpsynth_assets.models.transformers_decoder import opening
from dpsynth_assets.models.transformers_decoder.decoder import TransformersDecoder
from dpsynth_assets.privacy.errors import UndeclaredPublicFactError
from dpsynth_assets.privacy.guarantees import MEASURED_SLACK, RESTS_ON
from dpsynth_assets.report.label_texts import assumptions
from dpsynth_assets_tests.methods.private_prediction.conftest import HISTOGRAM, make_planned, small

CLUSTERED = ("mean_clustered", "median_clustered")
UNIFORM = ("mean_uniform", "mean_svt", "invisible_ink")
NAMES = (*UNIFORM, *CLUSTERED)
BATCHES = {"max_batches": 2, "max_document_tokens": 30, "max_example_tokens": 6}


class Case:
    """One method with its plan and public inputs."""

    def __init__(self, name, cases, model, histogram=HISTOGRAM, terms=(), **settings):
        self.cases, self.model = cases, model
        terms = cases.terms(accepts_ex_post=True, epsilon=12.0, **dict(terms))
        self.method, self.plan = make_planned(name, 12.0, terms, **(BATCHES | settings))
        self.public = cases.clustered(model, cluster_histogram=histogram)

    def check(self):
        self.method.stages()[0].check(self.public)

    def release(self):
        return self.cases.release(self.method, self.plan, self.cases.private(64), self.public)

    @property
    def columns(self):
        """Longest prompt with an example of full length."""
        return len(self.model.prompt_ids("why", [""], 1)) + 6


def positions(model, count):
    model.model.config.max_position_embeddings = count


@pytest.mark.parametrize("name", NAMES)
def test_a_run_that_fills_the_models_positions_comes_to_its_end(name, cases, endless_model):
    """Documents that a batch leaves unfinished, and extra ones, are written there as well."""
    case = Case(name, cases, endless_model)
    positions(endless_model, case.columns + 30)
    case.check()
    corpus = case.release().value
    assert corpus.facts["unfinished_documents"] > 0
    assert corpus.rows["n_tokens"].max() == 30


@pytest.mark.parametrize("name", NAMES)
def test_prompts_and_documents_beyond_the_models_positions_are_refused(name, cases, endless_model):
    case = Case(name, cases, endless_model)
    limit = case.columns + 29
    positions(endless_model, limit)
    with pytest.raises(ValueError, match=f"within {limit} tokens of attention, got {limit + 1}"):
        case.check()


@pytest.mark.parametrize("name", NAMES)
def test_a_check_reads_no_private_records(name, cases, language_model):
    case = Case(name, cases, language_model)
    language_model.prompts.clear()
    case.check()
    assert {text for examples in language_model.prompts for text in examples} <= {""}
    signature = inspect.signature(case.method.stages()[0].check)
    assert [each.annotation for each in signature.parameters.values()] == [PublicInputs]


class LongPublicPrompts:
    """A model whose declared public prompt is longer than private ones."""

    def __init__(self, model, length):
        self._model, self._length = model, length

    def __getattr__(self, name):
        return getattr(self._model, name)

    def prompt_ids(self, label_text, examples, max_example_tokens):
        if examples:
            return self._model.prompt_ids(label_text, examples, max_example_tokens)
        return [3] * self._length


@pytest.mark.parametrize("name", NAMES)
def test_a_public_prompt_without_room_for_a_document_is_refused(name, cases, endless_model):
    positions(endless_model, 100)
    case = Case(name, cases, LongPublicPrompts(endless_model, 71))
    with pytest.raises(ValueError, match=r"public prompt and document within 100 .* got 101"):
        case.check()
    fits = Case(name, cases, LongPublicPrompts(endless_model, 70))
    fits.check()
    fits.release()


@pytest.mark.parametrize("name", CLUSTERED)
def test_a_public_prompt_that_nothing_reads_may_be_of_any_length(name, cases, language_model):
    model = LongPublicPrompts(language_model, 600)
    case = Case(name, cases, model, on_exhaustion="drop")
    case.check()
    case.release()


@pytest.mark.parametrize("name", CLUSTERED)
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (None, r"Expected cluster_histogram .*, got none"),
        ({"labels": ("x", "z")}, "declared labels"),
        ({"dp_counts": ((3, -2), (2, 3))}, "half a batch"),
        ({"centers": ((0, 6), (1, 3))}, "6 public centres"),
    ],
)
def test_a_histogram_that_gives_no_batches_is_refused(
    name, cases, language_model, changes, message
):
    histogram = None if changes is None else HISTOGRAM.model_copy(update=changes)
    with pytest.raises(ValueError, match=message) as refusal:
        Case(name, cases, language_model, histogram).check()
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("name", UNIFORM)
def test_uniform_batches_ask_for_a_histogram_where_nothing_else_gives_their_number(
    name, cases, language_model
):
    Case(name, cases, language_model, histogram=None).check()
    undeclared = Case(name, cases, language_model, None, terms={"public_records": None})
    with pytest.raises(ValueError, match=r"Expected cluster_histogram .*, got none"):
        undeclared.check()


@pytest.mark.parametrize("name", NAMES)
def test_undeclared_places_are_refused(name, cases, language_model):
    case = Case(name, cases, language_model)
    slots = case.method.config.model_copy(update={"batching": "slots"})
    case.method = type(case.method)(slots, case.method.terms)
    with pytest.raises(UndeclaredPublicFactError, match=r"public_facts\.slots"):
        case.check()


def test_passes_are_counted_by_what_public_numbers_say_of_their_rows(cases):
    def rows(records=None, name="mean_uniform", **settings):
        own = small(name, **(BATCHES | {"batches_per_forward": 4} | settings))
        declared = bound_method(name, own, cases.terms(public_records=records)).declared
        return declared.rows_at_hand, declared.facts.rows_per_pass

    assert rows(batches_per_label=2) == (128, 128)  # They may hold any number of records.
    assert 32 < rows(16, batches_per_label=2)[0] < rows(name="mean_clustered")[0] < 128


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, "bfloat16") for name in NAMES), ("mean_uniform", "float32")],
)
def test_a_gpu_needs_a_slack_that_was_measured_in_no_smaller_passes(
    name, dtype, cases, language_model, monkeypatch
):
    """A stand-in for a GPU."""
    decoder = TransformersDecoder(language_model.model)
    decoder.dtype, decoder.device = getattr(torch, dtype), SimpleNamespace(type="gpu")
    monkeypatch.setattr(preconditions, "decoder_of", lambda *_: decoder)
    monkeypatch.setattr("dpsynth_assets.models.language_model.free_bytes", lambda _: 1e12)
    monkeypatch.setattr(opening, "require_equal_logits", lambda _: None)
    case = Case(name, cases, language_model, logit_slack=1e-4)
    passes = case.method.pass_shape(language_model)

    def recorded(by, passes):
        found = LogitMoves(by=by, contexts=9, companies=9, passes=passes, **decoder.facts)
        audit = slack_audit(lambda: found, 1e-4, name=f"{case.method.terms.cohort}/{NAME}")
        settings = settings_of(case.method.terms)
        save_results(slack_file(), [replace(audit.run(), settings=settings)])

    for measured in (None, replace(passes, rows=passes.rows - 1)):
        if measured is not None:
            recorded(1e-5, measured)
        with pytest.raises(ValueError, match=f"passes of {passes.rows} rows.*audit run") as refused:
            case.check()
        assert "\n" not in str(refused.value)
    recorded(1e-5, passes)
    case.check()
    with pytest.raises(ValueError, match=rf"declared logit_slack for torch\.{dtype} on.* 1e-05"):
        Case(name, cases, language_model).check()
    stated = case.method.stages()[0].tested(case.public)[MEASURED_SLACK]
    charge = SimpleNamespace(event=None, parameters={RESTS_ON: {MEASURED_SLACK: stated}})
    *_, measured, tried = assumptions([charge])
    assert f"Weights are {dtype}" in measured
    assert "moved by 1e-05 at most" in measured
    assert f"up to {passes.rows} rows" in tried
    recorded(2e-4, passes)
    with pytest.raises(ValueError, match=r"Expected logit_slack >= 0\.0002"):
        case.check()
