"""In-context accuracy: the public model names labels of real records after a few rows of a corpus.

Nothing is trained: the rows stand in the prompt. A model prefers some labels after any text, so
each label's probability is divided by what it has after texts without content.

**Privacy** Held-out records are read without noise, by a model on this machine: scores are
internal, for the steward.

**Source** Amin et al. 2024, section 5.1, and EPSVec, appendix B.7; Zhao et al. 2021, "Calibrate
before use", section 5: the mean over three texts without content, and a diagonal matrix.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from dpsynth_assets.metrics.fine_tuned import runs_estimate
from dpsynth_assets.metrics.metric import LEAST_ROWS, Estimate, Metric, Need, Sides, stratified_rows
from dpsynth_assets.models.next_answers import answer_log_shares

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
    needs=frozenset({Need.LABELS, Need.IN_CONTEXT}),
    least_rows=LEAST_ROWS,
    narrow_title="in context",
    meaning=f"Share of real records whose label the public model predicts with {SHOTS} rows of "
    "the corpus in its prompt; more is better.",
)
