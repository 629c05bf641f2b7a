"""Reconstruction test: does a generator write planted keys more often than keys it never saw?

Each of all 5-digit keys becomes a record by a coin of its own, or each public place gets one of its
own keys or none; the keys that chance left out are the hold-out. A corpus that depends on no record
writes both alike. Keys are made up, so the test reads no private record and costs no budget; it
runs a real method on a real model.

**Source** Amin et al. 2025, appendix D.5.1. The paper compares the overlap of 25,000 keys and of
25,000 others. Our source is small and all other keys are the hold-out: a key is then so unlikely
to be right by chance that a few right ones prove more than thousands of even odds (`prove`).
Letters: K keys in all, p chance of a key to be planted, g distinct keys that were written, M public
places.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from dpsynth_assets.attacks.audits.audit import FALSE_ALARM, Finding, lower_rate, upper_rate
from dpsynth_assets.models.decoding.protocol import Decoder, Reading
from dpsynth_assets.models.engines.protocol import Capability
from dpsynth_assets.models.prompt_templates import PromptedModel, PromptTemplates

if TYPE_CHECKING:
    import torch

DIGITS = 5
KEYS = 10**DIGITS
PREFIX = f"My {DIGITS}-digit key is "
"""Stands before every key and is given to the model, which has only digits left to write."""

NULL_CHANCE = 0.25
"""Chance of a public place to hold a null record: what zero-out compares its record with."""

INTERVAL = 0.95
"""Confidence of the intervals that are shown; verdicts rest on `FALSE_ALARM`."""


@dataclass(frozen=True, kw_only=True)
class PlantedKeys:
    """Keys of the source; all others are the hold-out.

    Attributes:
        source: Planted keys, five digits each, ascending.
        chance: p: the odds of a key to be planted, against no key at all, are p : 1 − p.
        expected: Expected number of planted keys.
        places: For public places, the key or the null text of each in order; None where coins
            decide which records there are.
    """

    source: tuple[str, ...] = field(repr=False)
    chance: float
    expected: float
    places: tuple[str, ...] | None = field(default=None, repr=False)

    @property
    def held_out(self) -> int:
        """Number of keys that were not planted."""
        return KEYS - len(self.source)


def plant_keys(expected: int, seed: int | None = None) -> PlantedKeys:
    """Plants each key with chance expected / K.

    Args:
        expected: Expected number of planted keys, in (0, K/2].
        seed: For tests; None draws from the operating system. Keys are public either way.

    Raises:
        ValueError: `expected` is out of its domain.
    """
    if not 0 < expected <= KEYS // 2:
        raise ValueError(f"Expected 0 < planted keys <= {KEYS // 2}, got {expected}.")
    chance = expected / KEYS
    planted = np.flatnonzero(np.random.default_rng(seed).random(KEYS) < chance)
    return PlantedKeys(source=tuple(map(_key, planted.tolist())), chance=chance, expected=expected)


def plant_in_places(places: int, seed: int | None = None) -> PlantedKeys:
    """Gives each of M public places a null record, or one of the keys that are its own.

    Key x belongs to place x mod M. A place is null with chance `NULL_CHANCE` and holds each of its
    G keys with the same chance otherwise.

    Args:
        places: M in [1, K/2]: how many records there are is public.
        seed: As in `plant_keys`.

    Raises:
        ValueError: `places` is out of its domain.
    """
    if not 0 < places <= KEYS // 2:
        raise ValueError(f"Expected 0 < places <= {KEYS // 2}, got {places}.")
    draw, own = np.random.default_rng(seed), KEYS // places
    rounds = -(-(KEYS - np.arange(places)) // places)  # G of each place, `own` or one more
    keys = np.arange(places) + places * draw.integers(rounds)
    null = draw.random(places) < NULL_CHANCE
    odds = (1.0 - NULL_CHANCE) / NULL_CHANCE / own
    return PlantedKeys(
        source=tuple(map(_key, np.sort(keys[~null]).tolist())),
        chance=odds / (1.0 + odds),
        expected=places * (1.0 - NULL_CHANCE),
        places=tuple("" if empty else _key(key) for empty, key in zip(null, keys, strict=True)),
    )


def _key(number: int) -> str:
    return f"{number:0{DIGITS}d}"


def read_keys(texts: Sequence[str]) -> list[str]:
    """Reads the key each text begins with; texts that begin otherwise are left out."""
    starts = (re.match(rf"\s*([0-9]{{{DIGITS}}})", text) for text in texts)
    return [start[1] for start in starts if start]


@dataclass(frozen=True, kw_only=True)
class Rate:
    """A share of keys that were written, with a Clopper-Pearson interval at `INTERVAL`.

    Attributes:
        hits: Distinct keys written.
        keys: Keys there are.
    """

    hits: int
    keys: int

    @property
    def share(self) -> float:
        """Share of keys that were written; 0 of none."""
        return self.hits / max(1, self.keys)

    @property
    def interval(self) -> tuple[float, float]:
        """Bounds that treat keys as independent, as the paper's comparison does."""
        hits, level = np.array([self.hits]), (1.0 - INTERVAL) / 2
        if not self.keys:
            return 0.0, 1.0
        low, high = lower_rate(hits, self.keys, level), upper_rate(hits, self.keys, level)
        return float(low[0]), float(high[0])


@dataclass(frozen=True, kw_only=True)
class Overlap:
    """The keys that a corpus wrote.

    Attributes:
        documents: Texts in all.
        with_key: Texts that begin with a key.
        source: Planted keys written.
        held_out: Other keys written.
        chance: p of the planted keys.
    """

    documents: int
    with_key: int
    source: Rate
    held_out: Rate
    chance: float

    @property
    def guesses(self) -> int:
        """g, distinct keys written: each is a guess that it was planted."""
        return self.source.hits + self.held_out.hits

    @cached_property
    def proven_epsilon(self) -> float:
        """ε below which no mechanism explains the overlap; 0 without evidence of copying."""
        return prove(self.source.hits, self.guesses, self.chance)


@dataclass(frozen=True, kw_only=True)
class KeysWritten:
    """Planted keys that a method wrote, and those that copying without privacy would have written.

    Attributes:
        overlap: Keys the method wrote.
        control: Keys written from one record's own logits: what the test can see at all.
        claimed_epsilon: ε that the method states at `audit_delta`, or its realised bound.
    """

    overlap: Overlap
    control: Overlap
    claimed_epsilon: float


def count_overlap(planted: PlantedKeys, texts: Sequence[str]) -> Overlap:
    """Counts the distinct keys that texts begin with, by the set they belong to."""
    written = read_keys(texts)
    distinct = set(written)
    found = len(distinct & set(planted.source))
    return Overlap(
        documents=len(texts),
        with_key=len(written),
        source=Rate(hits=found, keys=len(planted.source)),
        held_out=Rate(hits=len(distinct) - found, keys=planted.held_out),
        chance=planted.chance,
    )


def prove(right: int, guesses: int, chance: float, false_alarm: float = FALSE_ALARM / 2) -> float:
    """Finds the largest ε that `right` of `guesses` written keys refute; 0 if they refute none.

    Args:
        right: Written keys that were planted, in [0, guesses].
        guesses: g, distinct written keys.
        chance: p in (0, 1).
        false_alarm: β in (0, 1).

    **Privacy** A mechanism that is (ε, δ)-DP under add/remove is refuted at its ε with probability
    at most β + Kpδ, for any text that it writes and any batches that keys share. Proof: let B_i be
    the coin of key i, t the output, and P_1, P_0 the distributions of t for B_i = 1, 0 given the
    coins before i and averaged over those after, which are (ε, δ)-close. Call a planted key bad
    with probability 1 − min(1, e^ε P_0(t)/P_1(t)); its mean is at most δ, so any key is bad with
    probability at most Kpδ. Given t and all before, B_i = 1 and not bad has probability
    p min(P_1, e^ε P_0) / (p P_1 + (1 − p) P_0) <= q = e^ε p / (1 − p + e^ε p), for every ratio
    P_1/P_0. So the right guesses that are not bad are at most Binomial(g, q), given t, and
    Clopper-Pearson bounds q. Purely ex-post claims have no such proof: theirs is a comparison.

    In public places (`plant_in_places`, zero-out) let P_0 be the distribution with place i null,
    chance p_0, and P_x that with its key x, chance p_x; p : 1 − p stands for p_x : p_0. Of g_i
    written keys of the place one at most is right, and it is right and not bad with probability at
    most g_i a / (1 + g_i a), a = e^ε p_x / p_0, by the same comparison. That is at most
    1 − (1 + a)^(−g_i), the chance that any of g_i coins of chance q = a / (1 + a) shows heads: the
    count is again at most Binomial(g, q). Any key is bad with probability at most M (1 − p_0) δ.

    **Source** Steinke, Nasr, Jagielski 2023, Privacy auditing with one training run, for p = 1/2;
    the version for any p, of right guesses alone, is ours.
    """
    if not guesses:
        return 0.0
    share = float(lower_rate(np.array([right]), guesses, false_alarm)[0])
    if share <= chance:
        return 0.0
    return _logit(share) - _logit(chance)


def audit_delta(planted: PlantedKeys) -> float:
    """δ at which a claim is read for the test: times the expected keys half of `FALSE_ALARM`."""
    return FALSE_ALARM / (2.0 * planted.expected)


def judge(overlap: Overlap, claimed_epsilon: float) -> Finding:
    """Compares the proven ε with the claimed one; the note holds both overlaps.

    Args:
        overlap: What the corpus wrote.
        claimed_epsilon: ε of the method at `audit_delta`, or its realised ex-post bound.
    """
    return Finding(claimed=claimed_epsilon, observed=overlap.proven_epsilon, note=describe(overlap))


def describe(overlap: Overlap) -> str:
    """Writes both overlaps in one line."""
    return (
        f"{overlap.documents} texts, {overlap.with_key} with a key; source keys written: "
        f"{_written(overlap.source)}; other keys: {_written(overlap.held_out)}"
    )


def _written(rate: Rate) -> str:
    low, high = rate.interval
    return f"{rate.hits} of {rate.keys} = {rate.share:.3%} [{low:.3%}, {high:.3%}]"


def _logit(share: float) -> float:
    return math.log(share) - math.log1p(-share) if share < 1 else math.inf


# Models for reconstruction tests: one that only copies, and one that frames texts by a prefix.
#
# A language model that never repeats its prompt would pass any reconstruction test. This one has no
# weights: it gives probability to what followed the last token earlier in its row, and its ten
# digits have no meaning that could draw attention from repeating what the prompt holds.

BEGIN, END, PAD = 0, 1, 2
SPECIAL = 3
PLACES = 5
VOCABULARY = SPECIAL + 10 * PLACES
COPYING = 24.0
"""Logit of a token that always followed the last one; others have 0, special ones as much less."""


class CopyingDecoder(Decoder):
    """Gives each token that followed the last one earlier in its row its share of `copying`.

    **Source** Olsson et al. 2022, "In-context learning and induction heads": what such heads do.
    """

    copying = COPYING
    capabilities = frozenset({Capability.PRIVATE_TEXT})
    attention_limit = 8192

    def __init__(self) -> None:
        import torch

        self.device, self.dtype = torch.device("cpu"), torch.float32

    def _read(self, prompts: Sequence[Sequence[int]], _reading: Reading) -> "CopyingContexts":
        return CopyingContexts([(list(prompt), []) for prompt in prompts], self.copying)


class CopyingContexts:
    """Prompts and documents of tokens; see `Contexts`."""

    def __init__(self, rows: "list[tuple[list[int], list[int]]]", copying: float) -> None:
        """Takes a prompt and a document for each row."""
        self._rows, self._copying = rows, copying

    def __len__(self) -> int:
        """Number of contexts."""
        return len(self._rows)

    def next_logits(self, tokens: "torch.Tensor", generated: "torch.Tensor") -> "torch.Tensor":
        """Advances every row by one token."""
        import torch

        logits = torch.zeros((len(self), VOCABULARY))
        logits[:, :SPECIAL] = -COPYING
        drawn = zip(self._rows, tokens.tolist(), generated.tolist(), strict=True)
        for row, ((prompt, document), token, count) in enumerate(drawn):
            document[max(0, count - 1) :] = [token] if count else []
            text = [*prompt, *document]
            followers = [after for before, after in pairwise(text) if before == text[-1]]
            for each in followers:
                if each >= SPECIAL:
                    logits[row, each] += self._copying / len(followers)
        return logits

    def keep(self, contexts: "torch.Tensor") -> None:
        """Drops all contexts but these."""
        kept = [self._rows[row] for row in contexts.tolist()]
        self._rows = [(prompt, list(document)) for prompt, document in kept]


class CopyingModel:
    """The part of `models.language_model.LanguageModel` that private prediction needs.

    A token is a digit at one of five places of a key, so what follows it in the prompt is never
    ambiguous. Other characters have no token; begin, end and pad are never written.
    """

    name = "copying model"
    end_token_id = END
    pad_token_id = PAD
    vocabulary_size = VOCABULARY

    @property
    def model(self) -> CopyingDecoder:
        """It decodes by itself."""
        return CopyingDecoder()

    def encode(self, text: str) -> list[int]:
        """Tokens of the digits of a text, by their place in a key."""
        digits = [int(character) for character in text if character in "0123456789"]
        return [SPECIAL + 10 * (i % PLACES) + digit for i, digit in enumerate(digits)]

    def decode(self, ids: Sequence[int]) -> str:
        """Digits of tokens."""
        return "".join(str((token - SPECIAL) % 10) for token in ids if token >= SPECIAL)

    def prompt_ids(
        self, _label_text: str, examples: Sequence[str], max_example_tokens: int
    ) -> list[int]:
        """Begin token, digits and end token of each example, and the begin token of one more."""
        ids = []
        for text in examples:
            ids += [BEGIN, *self.encode(text)[:max_example_tokens], END]
        return [*ids, BEGIN]


def prefilled(language_model: Any, templates: PromptTemplates | None) -> PromptedModel:
    """Gives a model its declared prompts, or its document format, with `PREFIX` before a text."""
    if templates is not None:
        return PrefilledPrompts(language_model, templates)
    form = language_model.document_format
    return PromptedModel(language_model, form=form._replace(opening=form.opening + PREFIX))


class PrefilledPrompts(PromptedModel):
    """A model that reads and writes in declared templates, with `PREFIX` before every text.

    A text's declared start, which precedes the prefix, is left out of what is read back: that
    begins with a key.
    """

    def _written_frame(self, label_text: str, examples: int) -> list[list[int]]:
        """The declared frame: each of its pieces ends where a text begins."""
        prefix = self._public_ids(PREFIX)
        return [[*part, *prefix] for part in super()._written_frame(label_text, examples)]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of a generated document's tokens: what follows `PREFIX`, without its end."""
        return super().decode(ids).removeprefix(self._templates.text_start)
