"""Recall of a detector of secrets, measured on secrets planted in public text."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from dpsynth_assets.datasets.secrets import SecretKindSpec
from dpsynth_assets.secret_detection.detectors import Detector, detector_of, normalised
from dpsynth_assets.secret_detection.planted import CARRIERS, invented_word, planter_of
from dpsynth_assets.secret_detection.words import VocabularyWords, Words

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
        return {
            "kind": self.kind,
            "planted": self.planted,
            "found": self.found,
            "recall": self.recall,
            "recall_at_least": self.at_least,
            "note": self.note,
        }


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
        return planter, f"Made-up values of {kind.entity}, one in four disguised."
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
        VocabularyWords(listed)
        if kind.detector == "rare_words"
        else Words(listed, ignore_case=kind.ignore_case)
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
    known = {normalised(one) for one in detector.find(before)}
    new = {normalised(one) for one in detector.find(after)} - known
    wanted = normalised(value)
    return any(wanted in one or (one in wanted and len(one) > part * len(wanted)) for one in new)
