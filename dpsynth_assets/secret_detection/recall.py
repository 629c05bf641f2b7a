"""Recall of a detector of secrets, measured on secrets planted in public text.

They are made up, written as people write such things, with checksums where the real ones have
them, and one in four as people disguise or mistype them. They are public: the same for everybody
who asks with the same seed.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from random import Random

from dpsynth_assets.datasets.secrets import SecretKindSpec
from dpsynth_assets.secret_detection.finding import (
    Detector,
    detector_of,
    listed_words,
    normalised,
    vocabulary_words,
)

CONFIDENCE = 0.95
INVENTED = 20
"""Words of the made-up list that stands in for a private one."""


@dataclass(frozen=True, kw_only=True)
class PlantedRecall:
    """Recall of one detector on planted secrets. Public.

    Attributes:
        kind: Kind of secret.
        planted: Texts with one planted secret each; 0 where nothing could be planted.
        found: Texts in which it was found.
        note: Why nothing was planted, or what the planted values were; a sentence.
    """

    kind: str
    planted: int
    found: int
    note: str

    @property
    def recall(self) -> float | None:
        """Share found; None where nothing was planted."""
        return self.found / self.planted if self.planted else None

    @property
    def at_least(self) -> float | None:
        """Lower end of a one-sided 95% Clopper-Pearson interval, for text like the public one."""
        from scipy.stats import beta

        if not self.planted:
            return None
        if not self.found:
            return 0.0
        return float(beta.ppf(1 - CONFIDENCE, self.found, self.planted - self.found + 1))

    def to_json(self) -> dict[str, object]:
        """JSON values for metadata and ledger."""
        return {**asdict(self), "recall": self.recall, "recall_at_least": self.at_least}


def planted_recall(
    kind: SecretKindSpec, public_texts: Sequence[str], *, planted: int, seed: int
) -> PlantedRecall:
    """Plants made-up secrets of one kind in public texts and looks for them.

    A planted value counts as found where the detector finds, in the text that carries it, a value
    it did not find before that contains the planted one or most of it (of an example for a regular
    expression: any part, since the expression may have a group).

    Args:
        kind: Declaration of the kind.
        public_texts: Public documents, at least one.
        planted: Texts in which one secret each is planted.
        seed: Public seed.

    **Privacy** Reads public text and made-up values only: a dictionary and the rare words of the
    records are replaced by invented lists, so the result says nothing of the records.
    """
    values, note = _values(kind)
    if values is None or not planted or not public_texts:
        return PlantedRecall(kind=kind.name, planted=0, found=0, note=note)
    draw = Random(f"{kind.name} {seed}")
    detector, made_up = _opened(kind, values, draw)
    part = 0.0 if kind.detector == "regex" else 0.5
    found = 0
    for number in range(planted):
        text = public_texts[draw.randrange(len(public_texts))]
        value = made_up(draw)
        carrier = CARRIERS[number % len(CARRIERS)].format(value)
        found += _is_found(detector, text, _insert(text, carrier, draw), value, part)
    return PlantedRecall(kind=kind.name, planted=planted, found=found, note=note)


def _values(kind: SecretKindSpec) -> tuple[Callable[[Random], str] | None, str]:
    """What makes up values of a kind, and what to say of it."""
    if kind.detector == "column":
        return None, "Given by a column of the source: nothing is detected."
    if kind.examples:
        return lambda draw: draw.choice(kind.examples), "Declared examples."
    if kind.detector in ("dictionary", "rare_words"):
        return invented_word, "Words of an invented list, with other letter case and endings."
    if planter := planter_of(kind.entity):
        return planter, f"Made-up values of {kind.entity}; one in four is disguised."
    return None, "Not measured: declare examples of what this kind looks like."


def _opened(
    kind: SecretKindSpec, values: Callable[[Random], str], draw: Random
) -> tuple[Detector, Callable[[Random], str]]:
    """The detector to be tested, and what it has to find."""
    if kind.detector not in ("dictionary", "rare_words"):
        detector = detector_of(kind, ())
        if detector is None:
            raise ValueError(f"Expected a detector for kind {kind.name!r}, got none.")
        return detector, values
    listed = [values(draw) for _ in range(INVENTED)]
    detector = (
        vocabulary_words(listed)
        if kind.detector == "rare_words"
        else listed_words(listed, ignore_case=kind.ignore_case)
    )
    return detector, lambda d: _written(d.choice(listed), d)


def _written(word: str, draw: Random) -> str:
    """A listed word as it may stand in a text."""
    return draw.choice((word, word, word.capitalize(), word.upper(), f"{word}s", f"{word}'s"))


def _insert(text: str, carrier: str, draw: Random) -> str:
    """Puts a sentence behind one of the text's own."""
    ends = [place + 2 for place in range(len(text) - 1) if text[place : place + 2] == ". "]
    place = draw.choice([0, *ends, len(text)])
    return f"{text[:place].rstrip()} {carrier} {text[place:].lstrip()}".strip()


def _is_found(detector: Detector, before: str, after: str, value: str, part: float) -> bool:
    known = {normalised(one) for one in detector(before)}
    new = {normalised(one) for one in detector(after)} - known
    wanted = normalised(value)
    return any(wanted in one or (one in wanted and len(one) > part * len(wanted)) for one in new)


CARRIERS = (
    "Write to {} if anything is unclear.",
    "It concerns {}.",
    "I gave them {} at the counter,",
    "Ask for {} (not the other one)!",
    "my details: {}; please delete them",
    'She only said "{}" and left.',
)
"""Sentences around a planted value: with punctuation on either side, quoted, in the middle."""

_GIVEN = ("Amara", "Tobias", "Ingrid", "Mehmet", "Priya", "Callum", "Noor", "Beatriz")
_FAMILY = ("Lindqvist", "Okafor", "Marchetti", "Novak", "Castellanos", "Whitfield", "Tanaka")
_PLACES = ("Rotterdam", "Albuquerque", "Lagos", "Gdansk", "Osaka", "Cordoba", "Winnipeg")
_HOSTS = ("example.com", "mail.example.org", "north-shop.co.uk", "clinic.example.net")
_SYLLABLES = ("bor", "vex", "tal", "ruk", "mi", "zan", "dre", "qua", "lo", "fin", "sti", "gha")


_DISGUISED_ONE_IN = 4


def planter_of(entity: str | None) -> Callable[[Random], str] | None:
    """What makes up values of an entity; None where it is not known how they look."""
    planter = _PLANTERS.get(entity or "")
    if planter is None:
        return None

    def made_up(draw: Random) -> str:
        value = planter(draw)
        return _disguised(value, draw) if draw.randrange(_DISGUISED_ONE_IN) == 0 else value

    return made_up


def invented_word(draw: Random) -> str:
    """A word that no dictionary holds."""
    return "".join(draw.choice(_SYLLABLES) for _ in range(4))


def _disguised(value: str, draw: Random) -> str:
    """A value in a notation that no rule was made for: other separators, or lower case."""
    if "@" in value:
        spelled = value.replace("@", " at ").replace(".", " dot ")
        return draw.choice((spelled, value.replace("@", " @ ")))
    if not any(sign.isdigit() for sign in value):
        return value.lower()
    return re.sub(r"[-. :/()]+", draw.choice((" ", "", "_")), value).strip()


def _digits(draw: Random, count: int) -> str:
    return "".join(draw.choice("0123456789") for _ in range(count))


def _email(draw: Random) -> str:
    given, family = draw.choice(_GIVEN).lower(), draw.choice(_FAMILY).lower()
    name = draw.choice((f"{given}.{family}", f"{given[0]}{family}", f"{family}_{_digits(draw, 2)}"))
    return f"{name}@{draw.choice(_HOSTS)}"


def _card(draw: Random) -> str:
    body = "4" + _digits(draw, 14)
    doubled = [int(d) * (2 - place % 2) for place, d in enumerate(body)]
    check = -sum(d - 9 if d > 9 else d for d in doubled) % 10
    number = f"{body}{check}"
    parts = [number[start : start + 4] for start in range(0, 16, 4)]
    return draw.choice((" ", "-", "")).join(parts)


def _iban(draw: Random) -> str:
    body = _digits(draw, 18)
    check = 98 - int(f"{body}131400") % 97  # D = 13, E = 14
    return f"DE{check:02d}{body}"


def _filled(*forms: str) -> Callable[[Random], str]:
    """One of the forms, each # a digit."""
    return lambda draw: re.sub("#", lambda _: _digits(draw, 1), draw.choice(forms))


def _url(draw: Random) -> str:
    scheme = draw.choice(("https://", "http://www.", "www."))
    return f"{scheme}{draw.choice(_HOSTS)}/{invented_word(draw)}"


_PLANTERS: dict[str, Callable[[Random], str]] = {
    "EMAIL_ADDRESS": _email,
    "PHONE_NUMBER": _filled(
        "(212) 555-####", "415-555-####", "+1 617 555 ####", "720.555.####", "212555####"
    ),
    "CREDIT_CARD": _card,
    "IBAN_CODE": _iban,
    "US_SSN": _filled("4##-3#-5###", "2##-6#-1###"),
    "IP_ADDRESS": _filled("1##.#.#.1##", "10.1##.#.#"),
    "URL": _url,
    "UUID": _filled("########-####-4###-a###-############"),
    "MAC_ADDRESS": _filled("a#:#b:##:c#:##:#d"),
    "DATE_TIME": _filled("07/1#/19##", "03/2#/200#", "19##-11-1#", "200#-04-2#"),
    "PERSON": lambda draw: f"{draw.choice(_GIVEN)} {draw.choice(_FAMILY)}",
    "LOCATION": lambda draw: draw.choice(_PLACES),
}
