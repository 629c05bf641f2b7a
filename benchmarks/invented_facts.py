"""Records about invented facts, each held by a number of records that is known.

A fact is a thing of a person and one property of it, such as that the lamp of Torvald Quill is made
of copper. Each record says one fact, in one of seven sentences between words that say none, so that
records look like notes. Persons are invented, and no two facts share one: what a text says of a
person cannot be known without a record.
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product

HOLDERS = (1, 2, 5, 10, 20, 50, 100, 200)
"""Numbers of records that hold a fact."""

CHOICES = 4
"""Values that a question gives to choose from: the right one and three others."""

_KINDS = {
    "made of": (
        ("lamp", "gate", "bell", "ladder", "bowl", "trunk"),
        ("copper", "oak", "glass", "iron", "clay", "silver", "stone", "paper"),
    ),
    "painted": (
        ("door", "van", "boat", "fence", "cart", "chair"),
        ("red", "green", "blue", "white", "black", "yellow", "pink", "brown"),
    ),
    "kept in the": (
        ("drum", "coat", "clock", "map", "rope", "flag"),
        ("attic", "garage", "kitchen", "garden", "office", "barn", "hall", "cellar"),
    ),
}
"""What is said of a thing, the things, and the values."""

_FIRST = ("Torvald", "Ilsabet", "Odrin", "Maveth", "Sorrel", "Kestrin", "Ludo", "Perpetua",
          "Anselm", "Brisa", "Corwin", "Dagny", "Evander", "Fenella", "Gideon", "Hestia",
          )  # fmt: skip
_LAST = ("Quill", "Harrowby", "Vantongeren", "Ostrand", "Pemberlin", "Zuckmayer", "Thistlewick",
         "Okonjira", "Bramhold", "Castelroy", "Dunwoodle", "Eskeland")  # fmt: skip
_PUBLIC_LAST = ("Marlfield", "Nakasone", "Orrinder", "Plaskett", "Rhosgoch", "Stavenger",
                "Tolliver", "Umberlow", "Wexcombe", "Yarborne", "Zellwood", "Abernott")  # fmt: skip

_SENTENCES = (
    "The {thing} of {name} is {said} {value}.",
    "We saw that {name}'s {thing} is {said} {value}.",
    "{name} has a {thing} that is {said} {value}.",
    "About {name}: the {thing}, {said} {value}, was looked at.",
    "As for the {thing} of {name}, it is {said} {value}.",
    "Someone asked for {name}'s {thing}, which is {said} {value}.",
    "It is {said} {value}, the {thing} of {name}.",
)
_BEFORE = ("Note from Monday.", "Visited this morning.", "Second visit of the week.",
           "Short note.", "It rained all day.", "The road was closed.", "Nobody else was there.",
           "Called at noon.", "Weather was fine.", "Came by bus.", "The office was busy.", "",
           )  # fmt: skip
_AFTER = ("Nothing else to report.", "Will come again next week.", "Photos were taken.",
          "The report is filed.", "No action needed.", "Please check the list.", "Left at four.",
          "A copy goes to the office.", "All was in order.", "Tea was served.", "")  # fmt: skip
_QUESTIONS = ("The {thing} of {name} is {said}", "{name} says the {thing} is {said}")
"""Begun sentences; a value follows. Records have the first form, and none has the second."""


@dataclass(frozen=True)
class Fact:
    """One property of one thing of one person.

    Attributes:
        name: The person.
        thing: The thing.
        said: Words before the value.
        value: The value.
        others: Three wrong values of the same kind.
        holders: Records that say it.
    """

    name: str
    thing: str
    said: str
    value: str
    others: tuple[str, ...]
    holders: int

    def sentence(self, pattern: str) -> str:
        """The fact, or a question for it, in the words of a pattern."""
        return pattern.format(**vars(self))

    def questions(self) -> list[str]:
        """Begun sentences that the value would end."""
        return [self.sentence(pattern) for pattern in _QUESTIONS]

    def named_in(self, text: str) -> bool:
        """Whether a text names the person and the thing."""
        low = text.lower()
        return self.name.lower() in low and self.thing in low

    def stated_in(self, text: str) -> bool:
        """Whether a text names person, thing and value."""
        return self.named_in(text) and self.value in text.lower()


def facts(of_each: int, holders: Iterable[int] = HOLDERS, *, public: bool = False) -> list[Fact]:
    """Invents facts, as many for each number of holders; the same ones every time.

    Args:
        of_each: Facts for each number.
        holders: Numbers of records.
        public: Whether they are of the other persons, of whom no private record tells.

    Raises:
        ValueError: There are fewer persons than facts.
    """
    numbers = [each for each in holders for _ in range(of_each)]
    people = [" ".join(parts) for parts in product(_FIRST, _PUBLIC_LAST if public else _LAST)]
    if len(numbers) > len(people):
        raise ValueError(
            f"Expected at most {len(people)} facts, got {len(numbers)}. Ask for fewer."
        )
    draw = random.Random(2 if public else 1)
    draw.shuffle(people)
    found = []
    for place, (name, count) in enumerate(zip(people, numbers, strict=False)):
        said = list(_KINDS)[place % len(_KINDS)]
        things, values = _KINDS[said]
        value, *others = draw.sample(values, CHOICES)
        found.append(Fact(name, draw.choice(things), said, value, tuple(others), count))
    return found


def notes(known: Sequence[Fact], seed: int) -> list[str]:
    """Writes one record for each holder of each fact, in a drawn order."""
    draw = random.Random(seed)
    texts = []
    for fact in known:
        for _ in range(fact.holders):
            told = fact.sentence(draw.choice(_SENTENCES))
            texts.append(" ".join(filter(None, (draw.choice(_BEFORE), told, draw.choice(_AFTER)))))
    draw.shuffle(texts)
    return texts
