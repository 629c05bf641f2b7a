"""The most telling words of a document, by tf-idf over its corpus."""

from collections.abc import Sequence

import numpy as np

MAX_FEATURES = 30_000
_WORDS = r"(?u)\b[^\W\d_][\w'-]{2,}\b"


def document_keywords(documents: Sequence[str], count: int = 10) -> list[tuple[str, ...]]:
    """Words of each document that are frequent in it and rare elsewhere, most telling first.

    Args:
        documents: N public documents.
        count: Keywords of one document at most.

    Returns:
        N tuples of at most `count` lower-case words; empty where a document has none.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer(
        max_features=MAX_FEATURES,
        sublinear_tf=True,
        stop_words="english",
        token_pattern=_WORDS,
        min_df=2 if len(documents) > 100 else 1,
        dtype=np.float32,
    )
    try:
        matrix = vectorizer.fit_transform(documents).tocsr()
    except ValueError:  # sklearn's "empty vocabulary": no document holds a word
        return [()] * len(documents)
    words = vectorizer.get_feature_names_out()
    return [_top(words, matrix, row, count) for row in range(len(documents))]


def _top(words: np.ndarray, matrix: object, row: int, count: int) -> tuple[str, ...]:
    start, end = matrix.indptr[row], matrix.indptr[row + 1]  # type: ignore[attr-defined]
    columns, weights = matrix.indices[start:end], matrix.data[start:end]  # type: ignore[attr-defined]
    best = np.lexsort((columns, -weights))[:count]
    return tuple(str(words[column]) for column in columns[best])
