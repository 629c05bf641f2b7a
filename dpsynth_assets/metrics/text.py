"""Surface statistics of a corpus: lengths and their distance, diversity, label mixture."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from dpsynth_assets.attacks.leak_scan import find_canaries
from dpsynth_assets.attacks.overlap import near_duplicate_share, verbatim_share
from dpsynth_assets.json_records import parsed, validator
from dpsynth_assets.metrics.metric import OF_ROWS, OF_TEXT, Metric, Sides
from dpsynth_assets.models.language_model import in_parts, losses_after

MOST_NGRAMS = 10_000


def words_per_text(texts: Sequence[str]) -> np.ndarray:
    """Whitespace-separated words of each text: int64 (N,)."""
    return np.fromiter((len(text.split()) for text in texts), dtype=np.int64, count=len(texts))


def length_distance(texts: Sequence[str], other_texts: Sequence[str]) -> float:
    """Computes the 1-Wasserstein distance of the numbers of words, in words.

    Read it as: how many words a text would have to be lengthened or shortened on average to turn
    one distribution into the other.
    """
    from scipy.stats import wasserstein_distance

    return float(wasserstein_distance(words_per_text(texts), words_per_text(other_texts)))


def distinct_n(texts: Sequence[str], n: int) -> float:
    """Share of distinct n-grams among the corpus's first `MOST_NGRAMS`, case ignored.

    The share falls as a corpus grows, so it is taken over one number of n-grams for all corpora;
    one with fewer n-grams than that reads as more diverse than it is.

    Args:
        texts: The corpus.
        n: Words an n-gram, at least 1.

    Returns:
        A share in [0, 1]; 0 where no text has n words.
    """
    seen = list(islice(_ngrams(texts, n), MOST_NGRAMS))
    return len(set(seen)) / len(seen) if seen else 0.0


def _ngrams(texts: Sequence[str], n: int) -> Iterator[tuple[str, ...]]:
    for text in texts:
        words = text.lower().split()
        yield from zip(*(words[start:] for start in range(n)), strict=False)


def distinct_openings(texts: Sequence[str]) -> float:
    """Share of distinct openings of three words, case ignored: a repetitive model opens alike.

    The share falls as a corpus grows: compare corpora on one number of rows. A text of fewer words
    is its own opening.

    Returns:
        A share in [0, 1]: 1 where no two texts open alike; 0 without texts.

    **Source** Banayeeanzade et al. 2026 (EPSVec), Figure 3: distinct opening 3-grams.
    """
    openings = {tuple(text.lower().split()[:3]) for text in texts}
    return len(openings) / len(texts) if texts else 0.0


def label_distance(labels: Sequence[str], other_labels: Sequence[str]) -> float:
    """Total variation distance of two label distributions, in [0, 1].

    Read it as: the share of rows that would need another label to turn one into the other.
    """
    p, q = Counter(labels), Counter(other_labels)
    shares = (abs(p[name] / len(labels) - q[name] / len(other_labels)) for name in p | q)
    return 0.5 * sum(shares)


def _mean_words(sides: Sides) -> float:
    """0 for an empty corpus."""
    words = words_per_text(sides.corpus.texts)
    return float(words.mean()) if len(words) else 0.0


def _distinct(n: int) -> Metric:
    return Metric(
        f"distinct_{n}",
        f"distinct-{n}",
        lambda sides: distinct_n(sides.corpus.texts, n),
        of_real="held-out",
        tables=OF_TEXT,
    )


MEAN_WORDS = Metric(
    "mean_words", "mean words", _mean_words, decimals=1, of_real="held-out", tables=OF_TEXT
)

LENGTH_DISTANCE = Metric(
    "length_distance",
    "length distance (words)",
    lambda sides: length_distance(sides.corpus.texts, sides.held_out.texts),
    less_is_better=True,
    decimals=1,
    least_rows=1,
    tables=OF_ROWS,
    narrow_title="lengths",
    meaning="Mean number of words that must be added to or removed from a text to match the "
    "lengths of held-out records; less is better.",
)

DISTINCT = [_distinct(n) for n in (1, 2, 3)]
"""Shares of distinct words, word pairs and word triples."""

DISTINCT_OPENINGS = Metric(
    "distinct_openings",
    "distinct openings",
    lambda sides: distinct_openings(sides.corpus.texts),
    percent=True,
    tables=OF_ROWS,
    narrow_title="openings",
    meaning="Different first three words, as a share of all texts. Best near that of real data: "
    "less means that texts begin alike.",
)

LABEL_DISTANCE = Metric(
    "label_distance",
    "label distance",
    lambda sides: label_distance(sides.corpus.labels, sides.held_out.labels),
    less_is_better=True,
    needs=("labelled",),
    least_rows=1,
    tables=OF_ROWS,
    narrow_title="labels",
    meaning="Share of rows, in [0, 1], that need another label to match the label shares of "
    "held-out records; less is better.",
)


# What a corpus repeats of the source records, as metrics; `attacks/overlap.py` says how.
#
# **Privacy** Source records are read without noise: scores are internal, for the steward.


def _canaries(sides: Sides) -> int | None:
    """None where none was planted."""
    planted = sides.reference.canaries
    return find_canaries(sides.corpus.texts, planted) if len(planted) else None


_copies = partial(
    Metric,
    less_is_better=True,
    percent=True,
    needs=("reference",),
    of_real="held-out",
    tables=OF_TEXT,
)
VERBATIM_SHARE = _copies(
    "verbatim_share",
    "verbatim rows",
    lambda of: verbatim_share(of.corpus.texts, of.reference.searched, of.public_texts),
)
"""Share of rows with a span particular to few source records."""

NEAR_DUPLICATE_SHARE = _copies(
    "near_duplicate_share",
    "near duplicates of records",
    lambda of: near_duplicate_share(of.corpus.features, of.reference.searched),
)
"""Share of rows nearly the same as a source record."""

CANARIES_FOUND = Metric(
    "canaries_found",
    "canaries found",
    _canaries,
    less_is_better=True,
    needs=("reference",),
    of_real=None,
    tables=OF_TEXT,
)
"""Distinct planted canaries in the corpus."""


# Share of a corpus's texts that are JSON records of the declared structure.
#
# Reads the corpus and a public schema alone, so that for a released corpus these numbers are
# post-processing.
#
# **Source** Amin et al. 2024, section 5.3, table 4: samples, share that parses, share that
# validates. Both shares are of all samples, as there: what validates also parses.


def structure_scores(texts: Sequence[str], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Parses and validates every text.

    Args:
        texts: The corpus.
        schema: A JSON schema that `StructuredSpec` accepted: its references stay within it.

    Returns:
        `samples`, those `parsed` as one JSON value, those `valid` by the schema, and the shares of
        both, in [0, 1]; None without texts.
    """
    is_valid = validator(schema)
    values = [value for text in texts for value in parsed(text)]
    valid, samples = sum(map(is_valid, values)), len(texts)
    return {
        "samples": samples,
        "parsed": len(values),
        "valid": valid,
        "parse_rate": len(values) / samples if samples else None,
        "validation_rate": valid / samples if samples else None,
    }


def _scores(sides: Sides) -> dict[str, Any]:
    return structure_scores(sides.corpus.texts, sides.settings.record_schema or {})


def _share(name: str, title: str) -> Metric:
    return Metric(
        name,
        title,
        lambda sides: sides.once(_scores)[name],
        decimals=None,
        needs=("settings.record_schema",),
        of_real="held-out",
        tables=OF_TEXT,
    )


PARSE_RATE = _share("parse_rate", "parse as JSON")
VALIDATION_RATE = _share("validation_rate", "valid by schema")


# What rows are like without any record beside them: repetition among them, and perplexity.

FLUENCY_ROWS = 100
"""Rows whose perplexity is computed."""

NEAR = 0.95
"""Cosine of two rows' embeddings from which on they say the same."""

_TOKENS, _ROWS = 96, 16


def near_duplicates(features: np.ndarray) -> float:
    """Share of rows that have another row at a cosine of `NEAR` or more.

    Args:
        features: (N, d) embeddings of unit length.
    """
    if len(features) < 2:
        return 0.0
    cosines = features @ features.T
    np.fill_diagonal(cosines, -1.0)
    return float((cosines.max(axis=1) >= NEAR).mean())


def perplexity(language_model: Any, texts: Sequence[str]) -> float:
    """Perplexity of texts under the public language model, by token; low where they are fluent.

    Args:
        language_model: An opened `LanguageModel`; its float weights are read.
        texts: Cut to 96 tokens each; a text of one token is left out.

    Returns:
        exp of the mean loss in nats over all tokens but each text's first; NaN without any.
    """
    read = [list(language_model.encode(text))[:_TOKENS] for text in texts]
    loss, count = 0.0, 0
    for rows in in_parts([tokens for tokens in read if len(tokens) > 1], _ROWS):
        losses, counted = losses_after(language_model, rows, begun=1)
        loss, count = loss + losses.sum(), count + counted.sum()
    return float(np.exp(loss / count)) if count else float("nan")


NEAR_DUPLICATES = Metric(
    "near_duplicates",
    "near duplicates among rows",
    lambda sides: near_duplicates(sides.corpus.features),
    less_is_better=True,
    decimals=2,
    tables=OF_ROWS,
    narrow_title="near-duplicates",
    meaning="Share of rows, in [0, 1], that nearly repeat another row of the corpus; less is "
    "better.",
)

PERPLEXITY = Metric(
    "perplexity",
    "perplexity",
    lambda sides: perplexity(sides.language_model, sides.corpus.texts[:FLUENCY_ROWS]),
    less_is_better=True,
    decimals=0,
    needs=("language_model",),
    meaning=f"Per token under the public model, over {FLUENCY_ROWS} rows. Best near that of real "
    "data: less means smoother text, or repetition.",
    tables=OF_ROWS,
)
