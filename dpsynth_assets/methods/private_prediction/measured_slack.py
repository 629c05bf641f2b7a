"""What is measured of a base's logits: a self-test before a charge, and audits on record.

`attacks.logit_moves` measures both. A slack of 0 where vLLM decodes rests on kernels that round a
row alike in every batch (`VLLM_BATCH_INVARIANT=1`, on GPUs that have them): the self-test asks, on
public contexts, that no bit of a logit moves. An audit of a cohort (`dpsynth audit run COHORT`)
measures what its methods declare; plans that declare less than is on record are refused.
"""

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from dpsynth_assets.attacks.logit_moves import NAME, LogitMoves, PassShape, measured_moves
from dpsynth_assets.files.identity import version_of
from dpsynth_assets.methods.base import CohortTerms
from dpsynth_assets.models.decoding import Decoder
from dpsynth_assets.paths import home
from dpsynth_assets.privacy.directed_rounding import rounded_down, rounded_up

if TYPE_CHECKING:
    from dpsynth_assets.attacks.audits import Audit

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
    """Refuses a decoder that has no such kernels, or is not asked for them.

    Raises:
        ValueError: In one line.
    """
    if not (decoder.can_be_invariant and batch_invariant()):
        raise ValueError(NO_SLACK)
    if decoder.device.type == "cpu":
        raise ValueError(
            "Expected vLLM on a GPU with batch-invariant kernels for logit_slack: 0, got a "
            "processor, which has none. Declare logit_slack, or language_model.decoder: exact."
        )


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
    return {
        "passed": found.by == 0,
        "contexts": found.contexts,
        "companies": found.companies,
        "engine": found.engine,
        "device": found.device,
        "dtype": found.dtype,
    }


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
    from dpsynth_assets.attacks.audits.logit_slack import slack_audit

    measure = partial(measured_moves, decoder, language_model, passes)
    return slack_audit(measure, declared, name=f"{terms.cohort}/{NAME}")


def settings_of(terms: CohortTerms) -> str:
    """Digest of what was measured: another declaration of the model has no result."""
    model = terms.language_model
    return version_of(NAME, None if model is None else model.model_dump(mode="json"))


def measured_refusal(terms: CohortTerms, logit_slack: float) -> str | None:
    """Says in one line that more was measured than is declared; None if not, or nothing was.

    A file that holds no results is refused as well: what was measured is then not known.
    """
    if not slack_file().exists():
        return None
    from dpsynth_assets.attacks.audits import latest_results

    try:
        results = latest_results(slack_file())
    except ValueError as problem:
        return str(problem)
    own = (f"{terms.cohort}/{NAME}", settings_of(terms))
    for result in results:
        if (result.name, result.settings) == own and result.observed > logit_slack:
            return (
                f"Expected logit_slack >= {rounded_up(result.observed, '.3g')}, which was measured "
                f"on {result.finished_at[:10]} ({result.note}), got "
                f"{rounded_down(logit_slack, '.3g')}. Declare it, or measure again after a change: "
                f"dpsynth audit run {terms.cohort}."
            )
    return None
