"""Text quality as judged by the public language model: one yes-or-no question per row.

The model reads a text and a question that names the criteria of the paper's rubric. The score is
the probability of "yes" against "no" as the next token, so that no answer has to be written or
read. A model answers also where it does not understand: a row has no score unless the model tells
held-out records from the same words in another order.

More is better writing, and no closer to the records: real text is often judged worse than text of a
model.

**Privacy** Held-out records are read without noise, by a model on this machine: scores are
internal, for the steward.

**Source** Banayeeanzade et al. 2026 (EPSVec), appendix B.6: fluency, grammar, coherence.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from dpsynth_assets.metrics.metric import Estimate, Metric, Need, Sides, Tables
from dpsynth_assets.models.engines.protocol import opened_once
from dpsynth_assets.models.judges import shuffled
from dpsynth_assets.models.next_answers import answer_log_shares, first_tokens
from dpsynth_assets.models.prompt_templates import PromptedModel, PromptTemplates

JUDGED_ROWS = 100
"""Most rows of a corpus that are judged: its first ones."""

CONTROL_ROWS = 40
"""Held-out records that are judged beside their own words in another order."""

LEAST_RIGHT = 0.8
"""Share of these that must score above their shuffled words. A judge that guesses reaches it with
probability .0001 for 40 records; random weights, which see how a text ends, reached .72."""

TOKENS = 96
"""Of a text that is judged."""

_ASKED = "{examples}\n\nIs the text above fluent, grammatical and coherent? Answer yes or no."
_BEGUN = "\nAnswer:"


def yes_shares(language_model: Any, texts: Sequence[str]) -> np.ndarray:
    """Probability of "yes" against "no" for each text, float64 (N,).

    Args:
        language_model: An opened `LanguageModel`; its float weights are read.
        texts: N texts, each cut to 96 tokens.
    """
    chats = bool(language_model.tokenizer.chat_template)
    asked = _ASKED if chats else _ASKED + _BEGUN
    prompted = PromptedModel(
        language_model, PromptTemplates(private=asked, use_chat_template=chats)
    )
    prompts = [prompted.prompt_ids("", [text], TOKENS) for text in texts]
    answers = [first_tokens(language_model, [word, word.title()]) for word in ("yes", "no")]
    yes, no = answer_log_shares(language_model, prompts, answers).T
    return np.asarray(1.0 / (1.0 + np.exp(no - yes)))


def told_from_shuffled(language_model: Any, texts: Sequence[str]) -> float:
    """Share of texts that score above their own words in another order, in [0, 1]."""
    scores = yes_shares(language_model, [*texts, *map(shuffled, texts)])
    return float((scores[: len(texts)] > scores[len(texts) :]).mean())


def _control(sides: Sides) -> float:
    """Of held-out records, once for all corpora of a table."""
    chosen = tuple(sides.held_out.texts[:CONTROL_ROWS])
    return opened_once(told_from_shuffled, sides.language_model, chosen)


def _quality(sides: Sides) -> Estimate | None:
    """None where the control fails: such a judge gives no verdict."""
    if _control(sides) < LEAST_RIGHT:
        return None
    scores = yes_shares(sides.language_model, sides.corpus.texts[:JUDGED_ROWS])
    counts = sides.corpus.counts[:, : len(scores)]
    draws = counts @ scores / np.maximum(counts.sum(axis=1), 1)
    return Estimate.around(float(scores.mean()), draws)


QUALITY = Metric(
    "quality",
    "judged well written",
    _quality,
    needs=frozenset({Need.JUDGE}),
    least_rows=CONTROL_ROWS,
    tables=Tables("text", "file"),
    meaning="Mean probability, over rows, that the public model judges a row fluent, grammatical "
    "and coherent. Best near that of real data. A dash: the judge cannot distinguish "
    "real rows from shuffled words, so it gives no verdict.",
)

QUALITY_CONTROL = Metric(
    "quality_control",
    "judge tells real rows from shuffled words",
    _control,
    percent=True,
    needs=frozenset({Need.JUDGE}),
    least_rows=CONTROL_ROWS,
    tables=Tables("text", "file"),
    meaning="Share of held-out records that the judge scores above the same words in another "
    f"order. Below {LEAST_RIGHT:.0%} it gives no verdict.",
)
