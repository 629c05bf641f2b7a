"""Private cohorts of real text, each with held-out records, and public documents to build on.

A cohort's records come from one corpus, cut at a public length. Public documents come from the
other corpora; none is both. The corpora lie in DPSYNTH_REAL_DATA, or in ../shared/data beside the
project. The cohort `letters` is invented and needs none of them.
"""

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

from dpsynth_assets.benchmark.cohorts import Cohort, pieces, split_cohort
from dpsynth_assets.paths import project_root

TEXT_CHARACTERS = 240
"""Greatest length of private texts and of public documents, a public constant."""

PUBLIC_CORPORA = ("brown", "abc_news", "wikitext2", "wikipedia_movies")
_AS_WRITTEN = {
    " @-@ ": "-", " @,@ ": ",", " @.@ ": ".", " ,": ",", " .": ".", " ;": ";", " :": ":",
    " 's": "'s", "( ": "(", " )": ")", "`` ": '"', "``": '"', " ''": '"', "''": '"',
}  # fmt: skip
"""Brown and WikiText are tokenized; private text is not."""

Records = tuple[pl.DataFrame, Mapping[str, str]]
"""Columns `text` and `label`; how a prompt words each label."""


def load_cohort(name: str, records: int, held_out: int, per_label: int | None = None) -> Cohort:
    """Reads a cohort, cuts its texts, and splits it.

    Args:
        name: A name in `COHORTS`.
        records: Most source records.
        held_out: Most held-out records; at most a fifth of all.
        per_label: Source records of each label, as many of each; None: as they come.
    """
    found, labels = COHORTS[name]()
    whole = split_cohort(
        found,
        name=name,
        domain=_DOMAINS[name.split("_")[0]],
        labels=labels,
        max_characters=None if name in UNCUT else TEXT_CHARACTERS,
        records=None if per_label is not None else records,
        held_out=held_out,
        declared=_movies_declared() if name == "movies_json" else {},
    )
    if per_label is None:
        return whole
    source = whole.source.filter(pl.int_range(pl.len()).over("label") < per_label).head(records)
    numbered = source.drop("id").with_row_index("id").cast({"id": pl.String})
    return replace(whole, source=numbered)


def public_documents(cohort: str, count: int) -> pl.DataFrame:
    """Public documents for a cohort, as many of each corpus: `text`, `label`."""
    if cohort == "letters":
        return pl.DataFrame(_mailboxes().public_rows(count, 0)).select("text", "label")
    corpora = [name for name in PUBLIC_CORPORA if name != _FILES.get(cohort)]
    parts = [_documents(name, count // len(corpora)) for name in corpora]
    if cohort == "movies_json":
        from movie_records import invented_records

        parts.append(invented_records(parts[0]["text"].to_list(), count // 3))
    return pl.concat(parts).sample(fraction=1.0, shuffle=True, seed=1)


def real_data() -> Path:
    """Folder of the real corpora.

    Raises:
        SystemExit: There is none.
    """
    data = Path(os.environ.get("DPSYNTH_REAL_DATA") or project_root().parent / "shared" / "data")
    if not data.is_dir():
        raise SystemExit(f"skipped: no real corpora at {data}; set DPSYNTH_REAL_DATA")
    return data


def _documents(name: str, count: int) -> pl.DataFrame:
    corpus = pl.read_parquet(real_data() / f"{name}.parquet")
    text = "extract" if "extract" in corpus.columns else "text"
    labels = corpus["category"] if "category" in corpus.columns else [""] * corpus.height
    rows = [
        (piece, label.replace("_", " "))
        for document, label in zip(corpus[text], labels, strict=True)
        for piece in pieces(_as_written(document or ""), TEXT_CHARACTERS)
        if len(piece) > 40 and "<unk>" not in piece
    ]
    whole = pl.DataFrame(rows, schema=["text", "label"], orient="row")
    return whole.sample(min(count, whole.height), shuffle=True, seed=0)


def _as_written(text: str) -> str:
    for tokenized, plain in _AS_WRITTEN.items():
        text = text.replace(tokenized, plain)
    return text


def _yelp(label: pl.Expr, texts: Callable[[str], str] = str) -> Callable[[], Records]:
    def read() -> Records:
        reviews = pl.read_parquet(real_data() / "yelp_reviews.parquet")
        found = reviews.select("text", label.cast(pl.String).alias("label")).drop_nulls()
        return found, {value: texts(value) for value in sorted(found["label"].unique())}

    return read


def _sentiments() -> Records:
    """One or two stars are negative, four or five positive, as many of each."""
    stars = pl.col("stars")
    sentiment = pl.when(stars < 3).then(pl.lit("negative")).when(stars > 3).then(pl.lit("positive"))
    found, _ = _yelp(sentiment)()
    negative = found.filter(pl.col("label") == "negative")
    positive = found.filter(pl.col("label") == "positive").sample(negative.height, seed=0)
    return pl.concat([negative, positive]), {n: f"{n} review" for n in ("negative", "positive")}


def _category_and_rating() -> Records:
    """Reviews of the four most frequent categories, by category and stars."""
    category, stars = pl.col("category"), pl.col("stars").cast(pl.String)
    frequent = category.is_in(category.value_counts(sort=True).head(4).struct.field("category"))
    both = pl.when(frequent).then(pl.format("{} / {}", category, stars))
    return _yelp(both, lambda value: value.replace(" / ", " review, stars "))()


def _ag_news() -> Records:
    articles = pl.read_parquet(real_data() / "ag_news.parquet")
    found = articles.select("text", pl.col("topic").cast(pl.String).alias("label"))
    return found, {value: f"{value} news report" for value in sorted(found["label"].unique())}


def _plots() -> Records:
    """Movie plots without labels: public text in the place of records, to choose settings on."""
    movies = pl.read_parquet(real_data() / "wikipedia_movies.parquet")
    texts = movies.select(text="extract").drop_nulls()
    return texts.with_columns(label=pl.lit("")), {}


def _movies_json() -> Records:
    from movie_records import movie_records

    return movie_records(pl.read_parquet(real_data() / "wikipedia_movies.parquet"), pieces), {}


def _movies_declared() -> dict[str, Any]:
    from movie_records import DECLARED

    return DECLARED


def _letters() -> Records:
    found = pl.DataFrame(_mailboxes().private_rows(5_000, 1)).select("text", "label")
    return found, {value: value for value in sorted(found["label"].unique())}


def _mailboxes() -> Any:
    """The grammar that wrote the demo's files."""
    sys.path.append(str(project_root() / "data" / "demo"))
    import mailboxes

    return mailboxes


_STARS = {str(n): text for n, text in enumerate(("one", "two", "three", "four", "five"), 1)}

COHORTS: Mapping[str, Callable[[], Records]] = {
    "yelp_category": _yelp(pl.col("category")),
    "yelp_rating": _yelp(pl.col("stars"), lambda value: f"{_STARS[value]} star review"),
    "yelp_sentiment": _sentiments,
    "yelp_category_rating": _category_and_rating,
    "ag_news": _ag_news,
    "movie_plots": _plots,
    "movies_json": _movies_json,
    "letters": _letters,
}
_DOMAINS = {
    "yelp": "Yelp reviews of local businesses",
    "ag": "Short news reports of press agencies",
    "movie": "First paragraphs of Wikipedia articles about films",
    "movies": "Films as JSON records",
    "letters": "Letters to a bank",
}
UNCUT = frozenset({"movies_json", "letters"})
_FILES = {"movie_plots": "wikipedia_movies", "movies_json": "wikipedia_movies"}
