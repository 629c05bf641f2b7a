"""Next-word prediction: train a small causal model on a corpus, test it on real text.

The generative counterpart of downstream accuracy: it asks for words in their order, where a
classifier is content with which words go with which label.

**Privacy** Real text is read without noise: scores are internal, for the steward.
"""

from collections.abc import Callable, Sequence

from dpsynth_assets.metrics.metric import Metric, Need, Sides, Tables
from dpsynth_assets.models.next_word_model import (
    NextWordScores,
    NextWordSettings,
    new_next_word_model,
    score_next_words,
    train_next_word_model,
)

__all__ = ["NextWordScores", "NextWordSettings", "next_word_accuracy"]

ProgressCallback = Callable[[float, str], None]


def next_word_accuracy(
    train_texts: Sequence[str],
    test_texts: Sequence[str],
    settings: NextWordSettings | None = None,
    progress: ProgressCallback | None = None,
) -> NextWordScores:
    """Trains a small causal model on one corpus and tests it on real held-out text.

    Every corpus gets the same vocabulary, start, order seed and number of training tokens, however
    many rows it has: a smaller corpus is read more often. Equal arguments give equal scores on one
    machine.

    Args:
        train_texts: The corpus, at least one text with a word.
        test_texts: Real held-out texts; the first `settings.score_texts` are used.
        settings: Size, budget and seed; None takes a minute's worth on a small machine.
        progress: Called with the share done and a public message.

    Returns:
        Accuracy and perplexity on the held-out texts. Scores of different settings do not compare.

    Raises:
        ValueError: If either side has no text with a word.

    **Source** CTCL, section 4.1.3 (Xie et al. 2024): 10M-class causal models trained on synthetic
    text; ours is smaller unless settings say otherwise.
    """
    settings = settings or NextWordSettings()
    model = new_next_word_model(settings)
    train_next_word_model(model, train_texts, settings, progress)
    return score_next_words(model, test_texts, settings)


def _scores(sides: Sides) -> NextWordScores:
    settings = NextWordSettings.model_validate(dict(sides.settings.next_word or {}))
    return next_word_accuracy(sides.corpus.texts, sides.held_out.texts, settings)


NEXT_WORD_ACCURACY = Metric(
    "next_word_accuracy",
    "next-word accuracy",
    lambda sides: sides.once(_scores).accuracy,
    needs=frozenset({Need.NEXT_WORD}),
    narrow_title="next word",
)
"""Share of tokens of held-out records that a model trained on the corpus gets right."""

NEXT_WORD_PERPLEXITY = Metric(
    "next_word_perplexity",
    "next-word perplexity",
    lambda sides: sides.once(_scores).perplexity,
    less_is_better=True,
    decimals=1,
    needs=frozenset({Need.NEXT_WORD}),
    tables=Tables("text", "file"),
)
