"""Scores of a downstream model that was trained on private records by DP, without a corpus.

**Privacy** Real held-out text is read without noise: scores are internal, for the steward.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dpsynth_assets.models.label_classifier import LABELS_FILE, classify
from dpsynth_assets.models.next_word_model import load_next_word_model, score_next_words


def downstream_model_scores(
    folder: Path,
    held_out_texts: Sequence[str],
    held_out_labels: Sequence[str],
    held_out_features: np.ndarray,
) -> dict[str, float]:
    """Tests a released downstream model on real held-out records.

    Args:
        folder: Files of the stage `downstream_model`.
        held_out_texts: M texts.
        held_out_labels: M labels.
        held_out_features: (M, d) embeddings of the texts.

    Returns:
        `accuracy` of a classifier, or `next_word_accuracy` and `next_word_perplexity`: as those
        that were trained on corpora, where shapes agree.
    """
    if (folder / LABELS_FILE).is_file():
        predicted = np.asarray(classify(folder, held_out_features))
        return {"accuracy": float(np.mean(predicted == np.asarray(held_out_labels)))}
    model, settings = load_next_word_model(folder)
    scores = score_next_words(model, held_out_texts, settings)
    return {"next_word_accuracy": scores.accuracy, "next_word_perplexity": scores.perplexity}
