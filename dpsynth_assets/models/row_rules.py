"""Public rules for written texts: their form, where one ends, and which are rejected.

A text is whole sentences, or a record of the declared JSON schema.

They know public words only and look at text that is public or released, so that trimming a row and
turning it down are post-processing, at no cost.
"""

import hashlib
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal, get_args

from dpsynth_assets.json_records import record_check
from dpsynth_assets.models.engines.protocol import Sampling
from dpsynth_assets.models.prompt_templates import PromptTemplates

Rule = Literal["placeholders", "language", "repeats", "abuse"]
RULES: tuple[Rule, ...] = get_args(Rule)

_CLOSERS = "\"'”’»)\\]」』）】"
_END = re.compile(rf"(?:[.!?…؟۔।]+[{_CLOSERS}]*(?=\s|$)|[。！？]+[{_CLOSERS}]*)")
_NO_END = re.compile(
    r"(?:\b(?:[^\W\d_]|Mr|Mrs|Ms|Dr|Prof|St|Mt|Jr|Sr|No|Nos|vs|Inc|Ltd|Co|Corp|Gen|Gov|Sen|Rep|Lt|"
    r"Sgt|[a-z]\.[a-z]|[A-Z]\.[A-Z]))\.$"
)
"""An abbreviation or an initial, whose full stop ends no sentence."""

_LEAST_KEPT = 0.5
"""Of a text's characters: one that would lose more keeps its last piece."""

_TURN = re.compile(
    r"<\|[^|<>\n]{1,40}\|>|</?(?:end|begin|s|eos|bos)>|```|^#{2,} |\n\s*#{2,} |"
    r"\n\s*(?:user|assistant|human|system|text|label|example(?: \d+)?)\s*:",
    re.IGNORECASE,
)
"""Marks of a frame that no text goes on behind: chat turns, fences, fields of a next document."""

_LEAD = re.compile(
    r"(?:(?:text|answer|output|response)\s*:\s*|"
    r"(?:sure|certainly|of course|here)\b[^\n]{0,160}:\s*(?:\n|(?=[\"“])))",
    re.IGNORECASE,
)
"""What a model says before its text, or the name of a field."""

_CLOSED = re.compile(r'([^"]*[^\s"(])"\s*(?:[,;"]|\n)')
"""A text up to its first quotation mark, where that one closes and a list of others follows."""

_OPENED = re.compile(r'[^"]*[^\s"(\d]"(?=[\s.,;:!?)\-]|$)')
"""A text up to its first quotation mark, where that one closes, and is no mark of inches."""

_QUOTES = {'"': '"', "“": "”", "«": "»", "「": "」"}

_PLACEHOLDER = re.compile(
    r"\[(?:(?:your|insert|enter|add|specify|some|any)\b|[^\[\]\n]*\b(?:name|date|address|number|phone|"
    r"e-?mail|company|city|street|title|amount|account|location|signature|website|product|url|link|"
    r"bank|customer|recipient|sender|state|country|month|year|placeholder)s?\]?\b)[^\[\]\n]{0,40}\]|"
    r"\{\{?\s*[a-z_][\w ]{0,40}\}?\}|<(?:your|insert|name|text|label)\b[\w' ]{0,40}>|"
    r"\bx{4,}\b|\blorem ipsum\b",
    re.IGNORECASE,
)

_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\W_]+(?:['’\-][^\W_]+)*")
"""A word, or one character of a script without blanks between words."""

_LEAST_WORDS = 3
_LEAST_LETTERS = 0.6
_LEAST_DIFFERENT = 0.34
_LOOP_WORDS = 12
_NEAR = 0.8
_SHINGLE = 3

_ABUSE = re.compile(
    r"\b(?:(?:mother)?fuck\w*|cunts?|(?:bull)?shit(?:ty|head|s)?|bitch(?:es)?|whores?|sluts?|"
    r"cocksuck\w*|wank\w*|bastards?|assholes?|arseholes?|dickheads?|twats?|retards?|retarded|"
    r"nigg(?:er|a)s?|fag(?:got)?s?|kikes?|spics|chinks|wetbacks?|trann(?:y|ies)|kys|"
    r"kill yourself|porn\w*|blowjobs?|putas?|hijos? de puta|connards?|salopes?|encul\w+|"
    r"arschl\w+|fotzen?|hurensohn|stronz\w+|vaffanculo|caralho|kurw\w+|бля\w*|хуй\w*|пизд\w*)\b",
    re.IGNORECASE,
)
"""Insults and obscenities, a short list; what a domain of its own needs is its judge's to know."""

_HAS_ABUSE = re.compile(
    r"\b(?:abus|toxic(?!ol)|hate\b|hateful|hatred|offens|insult|profan|obscen|harass|slurs?\b|nsfw|"
    r"bully|moderation\b|swear)",
    re.IGNORECASE,
)


def trimmed(text: str, frames: Collection[str] = (), *, ended: bool = False) -> str:
    """Takes a written text out of what a model wrote: one text, whole sentences, no frame.

    Args:
        text: What the model wrote.
        frames: Public words that a prompt opens a text with, such as `Five-star review:`.
        ended: Whether the model ended the text itself: its last piece is then no sentence cut off,
            but a signature or a headline.

    Returns:
        The text up to its last sentence's end. One without such an end, as headlines are, or that
        would lose more than half, keeps its last piece. "" where nothing is left.
    """
    text = text.strip()
    openings = [each.strip().rstrip("\"'“") for each in frames]
    openings = [each for each in openings if len(each) > 2]
    text = _without_lead(text, openings)
    cuts = [found.start() for found in [_TURN.search(text)] if found]
    cuts += [place for each in openings if (place := text.find("\n" + each)) >= 0]
    text = _unquoted(text[: min(cuts, default=None)].strip())
    if any(each.rstrip().endswith('"') for each in frames):
        closed = _CLOSED.match(text)  # The prompt has opened the quotation that ends there,
        if closed:
            text = closed[1]
        elif _OPENED.match(text):  # of a title or of speech, where the text goes on behind it.
            text = f'"{text}'
    if ended:
        return text
    ends = [match.end() for match in _END.finditer(text) if _ends(text, match)]
    last = ends[-1] if ends else 0
    return text[:last] if last >= _LEAST_KEPT * len(text) else text


def has_abuse(words: str) -> bool:
    """Whether public words of a domain say that its records hold abuse."""
    return _HAS_ABUSE.search(words) is not None


class RowRules:
    """Says what is wrong with texts, one after another; texts that are kept are remembered.

    Args:
        rules: Those that are asked for.
    """

    def __init__(self, rules: Collection[Rule]) -> None:
        self._rules = frozenset(rules)
        self._seen: dict[int, int] = {}
        self._sizes: list[int] = []

    def fault(self, text: str) -> str:
        """The first rule that a text breaks; "" for none, and then later ones may not repeat it."""
        # Vowel signs of many scripts are marks, which a pattern of letters ends a word at.
        bare = "".join(sign for sign in text if unicodedata.category(sign)[0] != "M")
        words = [word.lower() for word in _WORD.findall(bare)]
        if not words:
            return "blank"
        checks = {
            "placeholders": lambda: _PLACEHOLDER.search(text) is not None,
            "language": lambda: _is_no_language(text, words),
            "abuse": lambda: _ABUSE.search(text) is not None,
            "repeats": lambda: self._repeats(words),
        }
        broken = (name for name, breaks in checks.items() if name in self._rules and breaks())
        return next(broken, "")

    def _repeats(self, words: Sequence[str]) -> bool:
        """Whether four of five runs of three words stand in one text before; remembers new ones."""
        runs = {hash(tuple(words[at : at + _SHINGLE])) for at in range(len(words) - _SHINGLE + 1)}
        runs = runs or {hash(tuple(words))}
        shared = Counter(self._seen[run] for run in runs if run in self._seen)
        for other, common in shared.most_common(1):
            if common >= _NEAR * (len(runs) + self._sizes[other] - common):
                return True
        for run in runs:
            self._seen.setdefault(run, len(self._sizes))
        self._sizes.append(len(runs))
        return False


def _ends(text: str, match: re.Match[str]) -> bool:
    """Whether a mark ends a sentence: not that of an abbreviation, and not within one."""
    if match.end() == len(text):
        return True
    following = text[match.end() :].lstrip()[:1]
    stop = match[0].startswith(".") and len(match[0]) == 1
    return not (stop and (following.islower() or _NO_END.search(text[: match.end()])))


def _without_lead(text: str, openings: Sequence[str]) -> str:
    """Leaves out what opens a text without being of it, however often it was written."""
    for _ in range(4):
        begun = next((each for each in openings if text.startswith(each)), "")
        lead = _LEAD.match(text)
        if not begun and lead is None:
            break
        text = text[len(begun) if begun else lead.end() :].lstrip()  # type: ignore[union-attr]
    return text


def _unquoted(text: str) -> str:
    """Leaves out quotation marks around the whole, and one that nothing closes or opens."""
    first, last = text[:1], text[-1:]
    closer = _QUOTES.get(first)
    if closer and last == closer and len(text) > 1 and closer not in text[1:-1]:
        return text[1:-1].strip()
    if closer and closer not in text[1:]:
        return text[1:].strip()
    opener = next((mark for mark, other in _QUOTES.items() if other == last), None)
    if opener and opener not in text[:-1]:
        return text[:-1].strip()
    return text


def _is_no_language(text: str, words: Sequence[str]) -> bool:
    """Whether a text is too short, is not of letters, or says the same words again and again."""
    written = [character for character in text if not character.isspace()]
    letters = sum(unicodedata.category(character)[0] in "LM" for character in written)
    if len(words) < _LEAST_WORDS or letters < _LEAST_LETTERS * len(written):
        return True
    if len(words) < _LOOP_WORDS:
        return False
    runs = [tuple(words[at : at + 2]) for at in range(len(words) - 1)]
    return len(set(runs)) < (1 - _LEAST_DIFFERENT) * len(runs)


SCHEMA = "json_schema_sha256"
"""Parameter of a charge that names the schema which decoding was constrained to, if any."""


@dataclass(frozen=True)
class TextForm:
    """What every text that is written has to be.

    Attributes:
        schema: JSON schema, as JSON; None: texts are free.
        text_start: Declared beginning of every text, which stands in its prompt.
        frames: Public words that open a text in its prompt, one a label.
    """

    schema: str | None = None
    text_start: str = ""
    frames: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, schema: str | None, templates: PromptTemplates | None, label_texts: Sequence[str] = ()
    ) -> "TextForm":
        """The form of texts behind prompts of such templates, with such words for labels."""
        if templates is None:
            return cls(schema)
        openings = (replace(templates, text_start="").opening(label) for label in label_texts)
        return cls(schema, templates.text_start, tuple(dict.fromkeys(openings)))

    def constrained(self, sampling: Sampling, begun: Sequence[Sequence[int]] = ()) -> Sampling:
        """Settings by which an engine keeps to the form.

        Args:
            sampling: Settings of free texts. Stop texts are left out: a record ends by itself.
            begun: Tokens of each text that stand in its prompt already.
        """
        if self.schema is None:
            return sampling
        return replace(
            sampling,
            stop=(),
            json_schema=self.schema,
            text_start=self.text_start,
            begun=tuple(map(tuple, begun)),
        )

    def read(self, text: str, *, ended: bool = True) -> str:
        """The text without what is not of it (`row_rules.trimmed`).

        A text of the schema stays as it is, and is "" where it is no record: it was cut, or an
        endpoint cannot do it.

        Args:
            text: What was written.
            ended: Whether the model ended it; one that its greatest length cut off is trimmed.
        """
        if self.schema is None:
            return trimmed(text, self.frames, ended=ended)
        return text if _check(self.schema)(text) else ""


FREE = TextForm()
"""Free text behind prompts that nothing is known of."""


def schema_parameters(schema: str | None) -> Mapping[str, str]:
    """Names a schema: texts of another one are another release."""
    return {} if schema is None else {SCHEMA: hashlib.sha256(schema.encode()).hexdigest()}


@cache
def _check(schema: str) -> Callable[[str], bool]:
    return record_check(json.loads(schema))
