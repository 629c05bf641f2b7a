"""What the public language model says of rows: how well they are written, what they teach.

**Privacy** Held-out records are read without noise, by a model on this machine: scores are
internal, for the steward.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from dpsynth_assets.metrics.downstream import runs_estimate
from dpsynth_assets.metrics.metric import (
    LEAST_ROWS,
    Estimate,
    Metric,
    Sides,
    Tables,
    stratified_rows,
)
from dpsynth_assets.models.decoding import open_decoder
from dpsynth_assets.models.decoding.protocol import shared_start
from dpsynth_assets.models.engines.protocol import DEFAULT, opened_once
from dpsynth_assets.models.judges import shuffled
from dpsynth_assets.models.language_model import in_parts
from dpsynth_assets.models.prompt_templates import PromptedModel, PromptTemplates

_ROWS_TOGETHER = 64
"""Prompts that are read at a time, where memory has room for them."""


def first_tokens(language_model: Any, words: Sequence[str]) -> list[int]:
    """Tokens that words begin with, each with and without a space before it."""
    written = [f"{space}{word}" for word in words for space in ("", " ")]
    return sorted({ids[0] for ids in language_model.encode_all(written) if ids})


def answer_log_shares(
    language_model: Any, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]
) -> np.ndarray:
    """Computes log-probabilities of answers after prompts; what prompts begin with is read once.

    Args:
        language_model: An opened `LanguageModel`; its float weights are read.
        prompts: N prompts of at least one token each.
        answers: A answers, each the tokens it may begin with.

    Returns:
        float64 (N, A), in nats: of any token of an answer.

    Raises:
        ValueError: A prompt is longer than the model's attention, or the decoder cannot be opened.
    """
    import torch

    decoder = open_decoder(DEFAULT, language_model)
    found = np.zeros((len(prompts), len(answers)))
    order = sorted(range(len(prompts)), key=lambda row: len(prompts[row]))
    size = decoder.rows_at_once(_ROWS_TOGETHER, 1 + max(map(len, prompts), default=0))
    for rows in in_parts(order, size):
        own = [prompts[row] for row in rows]
        contexts = decoder.open(
            own,
            prompt_columns=len(own[-1]),
            max_new_tokens=1,
            public_prefixes=[shared_start(own)],
        )
        begun = torch.zeros(len(own), dtype=torch.long)
        log_shares = contexts.next_logits(begun, begun).double().log_softmax(1).cpu()
        each = [log_shares[:, list(answer)].logsumexp(1) for answer in answers]
        found[rows] = torch.stack(each, 1).numpy()
    return found


# Text quality: one yes-or-no question per row, which names the criteria of the paper's rubric.
#
# The score is the probability of "yes" against "no" as the next token, so that no answer has to be
# written or read. A model answers also where it does not understand: a row has no score unless the
# model tells held-out records from the same words in another order. More is better writing, and no
# closer to the records: real text is often judged worse than text of a model.
#
# **Source** Banayeeanzade et al. 2026 (EPSVec), appendix B.6: fluency, grammar, coherence.

JUDGED_ROWS = 100
"""Most rows of a corpus that are judged: its first ones."""

CONTROL_ROWS = 40
"""Held-out records that are judged beside their own words in another order."""

LEAST_RIGHT = 0.8
"""Share of these that must score above their shuffled words. A judge that guesses reaches it with
probability .0001 for 40 records; random weights, which see how a text ends, reached .72."""

JUDGED_TOKENS = 96
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
    prompts = [prompted.prompt_ids("", [text], JUDGED_TOKENS) for text in texts]
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


_JUDGED = "settings.judged", "language_model"

QUALITY = Metric(
    "quality",
    "judged well written",
    _quality,
    needs=_JUDGED,
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
    needs=_JUDGED,
    least_rows=CONTROL_ROWS,
    tables=Tables("text", "file"),
    meaning="Share of held-out records that the judge scores above the same words in another "
    f"order. Below {LEAST_RIGHT:.0%} it gives no verdict.",
)


# In-context accuracy: the public model names labels of real records after a few rows of a corpus.
#
# Nothing is trained: the rows stand in the prompt. A model prefers some labels after any text, so
# each label's probability is divided by what it has after texts without content.
#
# **Source** Amin et al. 2024, section 5.1, and EPSVec, appendix B.7; Zhao et al. 2021, "Calibrate
# before use", section 5: the mean over three texts without content, and a diagonal matrix.


SHOTS, RUNS = 4, 3
"""Rows of the corpus in a prompt, and how often they are drawn."""

TESTED_ROWS, TOKENS = 100, 64
"""Most held-out records that are tested, and tokens of a text that are read."""

_WITHOUT_CONTENT = ("N/A", "[MASK]", "")


def named_labels(
    language_model: Any,
    shots: Sequence[tuple[str, str]],
    texts: Sequence[str],
    labels: Sequence[str],
) -> np.ndarray | None:
    """Names the label of each of N texts after shots, calibrated: str (N,).

    Args:
        language_model: An opened `LanguageModel`; its float weights are read.
        shots: (text, label) pairs, the last one nearest to the tested text.
        texts: N texts.
        labels: All labels, at least two.

    Returns:
        None where the first token in which labels differ does not tell them all apart.
    """
    encode = language_model.encode
    written = [encode(f" {label}") for label in labels]
    shared = next(
        (at for at, column in enumerate(zip(*written, strict=False)) if len(set(column)) > 1), None
    )
    if shared is None or len({ids[shared] for ids in written}) < len(labels):
        return None
    ends = encode("\n\n")

    def asked(text: str) -> list[int]:
        return [*encode("Text:"), *encode(f" {text}")[:TOKENS], *encode("\nLabel:")]

    start = [token for text, own in shots for token in (*asked(text), *encode(f" {own}"), *ends)]
    prompts = [[*start, *asked(text), *written[0][:shared]] for text in (*_WITHOUT_CONTENT, *texts)]
    log_shares = answer_log_shares(language_model, prompts, [[ids[shared]] for ids in written])
    blank, own = np.split(log_shares, [len(_WITHOUT_CONTENT)])
    preferred = np.log(np.exp(blank).mean(axis=0))
    return np.asarray(labels)[(own - preferred).argmax(axis=1)]


def _accuracy(sides: Sides) -> Estimate | None:
    corpus, held_out, seed = sides.corpus, sides.held_out, sides.settings.seed
    rows = stratified_rows(held_out.labels, TESTED_ROWS, seed)
    texts, truth = [held_out.texts[row] for row in rows], np.asarray(held_out.labels)[rows]
    labels = sorted({*corpus.labels, *held_out.labels})
    correct = []
    for run in range(RUNS):
        drawn = stratified_rows(corpus.labels, SHOTS, seed + run)
        order = np.random.default_rng(seed + run).permutation(drawn)
        shots = [(corpus.texts[row], corpus.labels[row]) for row in order]
        named = named_labels(sides.language_model, shots, texts, labels)
        if named is None:
            return None
        correct.append(named == truth)
    return runs_estimate(np.stack(correct), held_out.counts[:, rows])


IN_CONTEXT_ACCURACY = Metric(
    "in_context_accuracy",
    "in-context accuracy",
    _accuracy,
    needs=("labelled", "settings.in_context", "language_model"),
    least_rows=LEAST_ROWS,
    narrow_title="in context",
    meaning=f"Share of real records whose label the public model predicts with {SHOTS} rows of "
    "the corpus in its prompt; more is better.",
)
