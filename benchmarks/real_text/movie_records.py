"""Movies as JSON records (Amin et al. 2024, section 5.3), and invented ones for the public base.

A public model that has never seen the form cannot write it: records in it are invented from public
prose.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

import polars as pl

EXTRACT_CHARACTERS = 160
ACTORS = 4
FIELDS = ("title", "year", "cast", "genres", "href", "extract")
_GENRES = ("Drama", "Comedy", "Western", "Horror", "Musical", "Romance", "Crime", "War", "Thriller")
_NAME = re.compile(r"\b[A-Z][a-z]{2,} [A-Z][a-z]{2,}\b")


def _words(most_characters: int) -> dict[str, Any]:
    return {"type": "string", "minLength": 1, "maxLength": most_characters}


def _list(most_items: int) -> dict[str, Any]:
    return {"type": "array", "items": _words(40), "minItems": 1, "maxItems": most_items}


_LINK = {"type": "string", "pattern": r"^\S{1,100}$", "description": "no blanks, e.g. Link_to_Page"}
_PROPERTIES = {
    "title": _words(100),
    "year": {"type": "integer", "minimum": 1880, "maximum": 2030},
    "cast": _list(ACTORS),
    "genres": _list(6),
    "href": _LINK,
    "extract": _words(EXTRACT_CHARACTERS),
}
_SHOWN = {
    "title": "The Long Road",
    "year": 1950,
    "cast": ["Anna Hill", "John Reed"],
    "genres": ["Drama"],
    "href": "The_Long_Road",
    "extract": "The Long Road is a 1950 American drama film directed by Paul Green and starring "
    "Anna Hill and John Reed.",
}
"""An invented record, which the public prompt shows."""


def movie_records(
    movies: pl.DataFrame, pieces: Callable[[str, int], Iterator[str]]
) -> pl.DataFrame:
    """Writes each movie with one to `ACTORS` actors as a JSON text: `text`, `label`."""
    complete = movies.drop_nulls().filter(pl.col("cast").list.len().is_between(1, ACTORS))
    texts = []
    for movie in complete.select(FIELDS).iter_rows(named=True):
        extract = next(pieces(movie["extract"], EXTRACT_CHARACTERS), None)
        if extract is not None:
            texts.append(_text(movie | {"extract": extract}))
    return pl.DataFrame({"text": texts}).with_columns(label=pl.lit(""))


def invented_records(prose: Sequence[str], count: int) -> pl.DataFrame:
    """Invents records; names and extracts come from public prose: `text`, `label`."""
    random = Random(0)
    names = sorted({name for text in prose for name in _NAME.findall(text)})
    texts = [_invented(random.choice(prose), names, random) for _ in range(count)]
    return pl.DataFrame({"text": texts}).with_columns(label=pl.lit(""))


def _invented(extract: str, names: Sequence[str], random: Random) -> str:
    words = [word for word in re.findall(r"[a-z]{4,}", extract.lower()) if word.isascii()]
    title = " ".join(["The", *random.sample(words, min(2, len(words)))]).title()
    return _text(
        {
            "title": title,
            "year": random.randint(1900, 2023),
            "cast": random.sample(names, random.randint(1, min(4, len(names)))),
            "genres": random.sample(_GENRES, random.randint(1, 2)),
            "href": title.replace(" ", "_"),
            "extract": f"{title} is a {random.choice(_GENRES).lower()} film. {extract[:120]}",
        }
    )


def _text(record: dict[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False, separators=(",", ":"))


DECLARED: dict[str, Any] = {
    "structured": {
        "json_schema": {
            "type": "object",
            "additionalProperties": False,
            "required": list(FIELDS),
            "properties": _PROPERTIES,
        }
    },
    "prompt": {"public_text": _text(_SHOWN), "text_start": '{"title":"'},
}
"""Structure and prompts, as the dataset file of such a cohort declares them."""
