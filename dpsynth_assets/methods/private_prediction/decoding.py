"""Decoders of private prompts: their tokens, their logits and the slack for rounding.

Decoder and schema are declared; plans and charges name them. Prompts have a public greatest length.

`attacks.logit_moves` measures how far rounding lets other rows move a logit. A slack of 0 where
vLLM decodes rests on kernels that round a row alike in every batch (`VLLM_BATCH_INVARIANT=1`, on
GPUs that have them): a self-test before the charge asks, on public contexts, that no bit of a logit
moves. An audit of a cohort (`dpsynth audit run COHORT`) measures what its methods declare; plans
that declare less than is on record are refused. On a GPU nothing is planned without one.
"""

import os
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from dpsynth_assets.attacks.logit_moves import NAME, LogitMoves, PassShape, measured_moves
from dpsynth_assets.datasets.public_spec import DEFAULT_DECODER
from dpsynth_assets.files.kept import version_of
from dpsynth_assets.methods.base import CohortTerms
from dpsynth_assets.models.decoding import Decoder, JsonConstraint, open_decoder
from dpsynth_assets.paths import home
from dpsynth_assets.privacy.directed_rounding import rounded_down, rounded_up

if TYPE_CHECKING:
    from dpsynth_assets.attacks.audits import Audit, AuditResult

DECODER = "decoder"
"""Parameter of a charge that names the decoder, where it is another than transformers."""


def decoder_of(terms: CohortTerms, language_model: Any) -> Decoder:
    """Opens what decodes for a cohort: nothing but its declared terms decides which.

    **Privacy** Plan and run read the same declaration, so logits are exact wherever no rounding is
    charged.

    Raises:
        ExactDecoderError: The base declares the exact decoder, which does not compute this model.
        VllmDecoderError: The base declares vLLM, which is not installed or cannot load this model.
    """
    kind = _kind(terms)
    # Memory that it may use is no part of what is drawn: more of it asks for no other release.
    return open_decoder(kind, language_model, terms.engine if terms.engine.kind == kind else None)


def _kind(terms: CohortTerms) -> str:
    model = terms.language_model
    return DEFAULT_DECODER if model is None else model.decodes_by


def decoder_parameters(terms: CohortTerms) -> dict[str, str]:
    """Parameters that say in plan, charge and label what decodes; none for transformers."""
    kind = _kind(terms)
    return {} if kind == DEFAULT_DECODER else {DECODER: kind}


def constraint_of(terms: CohortTerms, language_model: Any) -> JsonConstraint | None:
    """What constrains the texts of a cohort; None where they are free."""
    if terms.json_schema is None:
        return None
    start = "" if terms.prompts is None else terms.prompts.text_start
    return JsonConstraint(language_model, terms.json_schema, start)


def require_slack(terms: CohortTerms, logit_slack: float) -> None:
    """Refuses rounding that goes uncharged, or is charged at less than was measured.

    In vLLM it may go uncharged where batch-invariant kernels are asked for. That they are at work
    is tested before the charge (`preconditions.check_slack`).

    Raises:
        ValueError: In one line.
    """
    model = terms.language_model
    if model is None:
        return
    exact = terms.decodes_exactly or (terms.decodes_in_vllm and batch_invariant())
    if logit_slack == 0 and not exact:
        raise ValueError(NO_SLACK)
    require_at_least_measured(terms, logit_slack)
    due = model.names_gpu or model.dtype in LOW_PRECISION
    if due and logit_slack > 0 and not terms.decodes_exactly and not slack_on_record(terms):
        raise _unmeasured(terms, model.device if model.names_gpu else model.dtype)


def prompt_columns(
    language_model: Any,
    label_texts: Sequence[str],
    examples_per_context: int,
    max_example_tokens: int,
) -> int:
    """Computes the pad length P of private prompts from public facts alone.

    Args:
        language_model: `models.language_model.LanguageModel`, or one with declared templates
            (`models.prompt_templates.prompted`).
        label_texts: How labels are written.
        examples_per_context: k.
        max_example_tokens: Cut of each example (tokens).

    Returns:
        Length of the longest label's prompt with k examples of full length (tokens). A declared
        public prompt may be longer: it is padded apart from private ones.

    **Privacy** The longest prompt at hand would be private, and padding to it lets one long record
    move every other record's logits (errata C-3).
    """
    empty = [""] * examples_per_context
    frames = [
        len(language_model.prompt_ids(label_text, empty, max_example_tokens))
        for label_text in label_texts
    ]
    return max(frames) + examples_per_context * max_example_tokens


def context_prompts(
    language_model: Any,
    label_text: str,
    contexts: Sequence[Sequence[str]],
    *,
    max_example_tokens: int,
    columns: int,
) -> list[list[int]]:
    """Writes one prompt for each context of k texts; a prompt beyond P keeps its last P tokens."""
    return [
        language_model.prompt_ids(label_text, list(texts), max_example_tokens)[-columns:]
        for texts in contexts
    ]


def public_prompt(language_model: Any, label_text: str) -> list[int]:
    """Writes the public prompt: the label alone, or what a declared template says."""
    ids: list[int] = language_model.prompt_ids(label_text, [], 1)
    return ids


LOW_PRECISION = ("bfloat16", "float16")
"""Number types whose rounding no default covers: a slack of theirs is measured first."""

NO_SLACK = (
    "Expected logit_slack > 0 with decoder: transformers or vllm, whose rounding lets one record "
    "move another's logits, got 0. Drop it for its default, declare language_model.decoder: "
    "exact, or set VLLM_BATCH_INVARIANT=1 for vllm on a GPU that has such kernels."
)

_tested: "WeakKeyDictionary[Any, dict[PassShape, LogitMoves]]" = WeakKeyDictionary()
"""Decoder -> its self-tests, the last one last; once a process and shape."""


def batch_invariant() -> bool:
    """Says whether vLLM is asked for kernels that round a row alike in every batch."""
    return os.environ.get("VLLM_BATCH_INVARIANT") == "1"


def require_invariant_kernels(decoder: Decoder) -> None:
    """Refuses a decoder that has no such kernels, as on a processor, or is not asked for them.

    Raises:
        ValueError: In one line.
    """
    if not (decoder.can_be_invariant and batch_invariant() and decoder.device.type != "cpu"):
        raise ValueError(NO_SLACK)


def self_tested(decoder: Any, language_model: Any, passes: PassShape | None = None) -> LogitMoves:
    """Tests a decoder on public contexts, in passes of a plan's shape: no bit of a logit may move.

    Args:
        decoder: What decodes.
        language_model: Its tokenizer.
        passes: The largest passes of the plan; None: of the last test, which the charge rested on.

    Raises:
        ValueError: One did, or the decoder cannot be tested; in one line.
    """
    tests = _tested.setdefault(decoder, {})
    shape = passes or next(reversed(tests), PassShape())
    if shape not in tests:
        tests[shape] = measured_moves(decoder, language_model, shape, whole=True)
    found = tests[shape]
    if found.by > 0:
        raise ValueError(
            "Expected a self-test in which no other row moves a logit (logit_slack: 0), got moves "
            f"of {rounded_up(found.by, '.3g')} ({found.over}). Nothing was charged: declare "
            "logit_slack, or language_model.decoder: exact."
        )
    return found


def stated(found: LogitMoves) -> dict[str, Any]:
    """Writes a self-test that passed as charges and labels keep it."""
    facts = found.facts
    return {"passed": facts.pop("by") == 0, **facts}


def slack_file() -> Path:
    """File of the audits of cohorts: beside those of mechanisms, which concern everybody."""
    return home().audits.with_name("logit_slack.json")


def cohort_audit(
    terms: CohortTerms, declared: float, decoder: Any, language_model: Any, passes: PassShape
) -> "Audit":
    """Makes the audit of what decodes for a cohort.

    Args:
        terms: Of the cohort.
        declared: The least slack that its methods declare.
        decoder: What decodes for it.
        language_model: Its model.
        passes: The largest passes of its methods.
    """
    from dpsynth_assets.attacks.audits.shared_passes import slack_audit

    whole = decoder.device.type != "cpu"  # A processor decodes in float32, and takes hours.
    measure = partial(measured_moves, decoder, language_model, passes, whole=whole)
    return slack_audit(measure, declared, name=f"{terms.cohort}/{NAME}")


def settings_of(terms: CohortTerms) -> str:
    """Digest of what was measured: other weights, or declared otherwise, have no result."""
    from dpsynth_assets.attacks.circumstances import files_behind

    model, engine = terms.language_model, terms.engine.model_dump(mode="json")
    if model is None:
        return version_of(NAME, None)
    declared = model.model_dump(mode="json"), engine if terms.decodes_in_vllm else None
    return version_of(NAME, declared, files_behind({"model": model.model}))


def slack_on_record(terms: CohortTerms) -> "list[AuditResult]":
    """Reads what was measured here of what decodes for a cohort: one result, or none.

    Raises:
        ValueError: The file holds no results: what was measured is then not known.
    """
    if not slack_file().exists():
        return []
    from dpsynth_assets.attacks.audits import latest_results

    own = (f"{terms.cohort}/{NAME}", settings_of(terms))
    return [each for each in latest_results(slack_file()) if (each.name, each.settings) == own]


def require_at_least_measured(terms: CohortTerms, logit_slack: float) -> None:
    """Refuses a declared slack below one that was measured.

    Raises:
        ValueError: In one line; also where results cannot be read.
    """
    for result in slack_on_record(terms):
        if result.observed > logit_slack:
            raise ValueError(
                f"Expected logit_slack >= {rounded_up(result.observed, '.3g')}, which was measured "
                f"on {result.finished_at[:10]} ({result.note}), got "
                f"{rounded_down(logit_slack, '.3g')}. Declare it, or measure again after a change: "
                f"dpsynth audit run {terms.cohort}."
            )


def _unmeasured(terms: CohortTerms, what: str) -> ValueError:
    return ValueError(
        f"Expected logit_slack as it was measured on this machine ({what}), got no such "
        f"measurement. Run dpsynth audit run {terms.cohort} here and declare what it finds, or "
        "decode exactly, or in float32 on a processor (device: cpu)."
    )


def require_measured(terms: CohortTerms, decoder: Decoder, passes: PassShape) -> dict[str, Any]:
    """Takes the measurement that a charge for rounding rests on.

    Args:
        terms: Of the cohort.
        decoder: What decodes: the measurement is of its engine, device and number type.
        passes: The largest passes of the plan: those measured were no smaller.

    Returns:
        What was measured, and on which day.

    Raises:
        ValueError: It was not measured; in one line.
    """
    facts = decoder.facts
    for result in slack_on_record(terms):
        found = {**result.measured}
        shape = PassShape(**{name: found.get(name, 0) for name in asdict(passes)})
        if facts.items() <= found.items() and shape.covers(passes):
            return {**found, "finished_at": result.finished_at}
    raise _unmeasured(
        terms,
        f"{', '.join(facts.values())}, passes of {passes.rows} rows, {passes.columns} tokens "
        f"and {passes.new_tokens} steps",
    )
