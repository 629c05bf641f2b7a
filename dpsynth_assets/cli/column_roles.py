"""Guesses which column is the text, an id or a person, by names alone.

What `dpsynth init` puts in force is read off the schema: a dataset file is public, and a choice
that followed from values would tell something of the records. Values, and names that leave a
choice, only make `init` stop and ask.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

_TEXT_WORDS = (
    "text", "body", "message", "content", "comment", "review", "description", "note", "story",
)  # fmt: skip
"""Last words of names of columns that hold text."""

_ID_WORDS = ("id", "key", "uuid", "guid")
_PERSON = re.compile(
    r"(^|_)(user|customer|client|patient|author|member|person|employee|account|owner|reviewer"
    r"|subscriber|student|sender|speaker|household)(_?(id|name|key|number|no))?$"
)


@dataclass(frozen=True, kw_only=True)
class NamedRoles:
    """Columns that are named like a text, an id or a person, in their order in the source.

    Where an id is called just that, it is the only one.
    """

    texts: tuple[str, ...]
    ids: tuple[str, ...]
    units: tuple[str, ...]


def roles_by_name(names: Sequence[str]) -> NamedRoles:
    """Reads roles off the names of columns: the schema, which a dataset file shows anyway."""
    persons = [name for name in names if names_a_person(name)]
    ids = [name for name in names if _last_word(name) in _ID_WORDS and name not in persons]
    bare = [name for name in ids if _snake(name) in _ID_WORDS]
    return NamedRoles(
        texts=tuple(name for name in names if _last_word(name) in _TEXT_WORDS),
        ids=tuple(bare[:1] or ids),
        units=tuple(persons),
    )


def names_a_person(name: str) -> bool:
    """Whether a column is named like those that people are known by."""
    return _PERSON.search(_snake(name)) is not None


def _snake(name: str) -> str:
    """Writes `reviewText` and `Review text` as `review_text`."""
    parted = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.strip())
    return re.sub(r"[^a-z0-9]+", "_", parted.lower()).strip("_")


def _last_word(name: str) -> str:
    """The last word of a name, in the singular: `customer_comments` is `comment`."""
    word = _snake(name).rpartition("_")[2]
    if word == "stories":
        return "story"
    return word[:-1] if word.endswith("s") and word[:-1] in _TEXT_WORDS else word
