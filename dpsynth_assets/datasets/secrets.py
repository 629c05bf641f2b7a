"""Declaration of secrets in a dataset file: what counts as one, and the bound promised to each."""

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from dpsynth_assets.datasets.fields import (
    IS_PATH,
    Declaration,
    Name,
    PublicWord,
    Refusal,
    twice,
    unfit,
)
from dpsynth_assets.privacy.directed_rounding import declared
from dpsynth_assets.privacy.guarantees import NeighboringRelation

_OWN = {
    "presidio": ("entity", "min_score"),
    "ner": ("entity", "min_score", "model", "framework"),
    "dictionary": ("path", "ignore_case"),
    "regex": ("pattern", "ignore_case"),
    "rare_words": ("quantile", "words"),
    "column": ("column",),
}
"""Fields that mean something to each detector."""


class SecretKindSpec(Declaration):
    """One kind of secret: how it is found, and what each secret of this kind is promised."""

    name: Name
    """Public name of the kind, e.g. email."""
    detector: Literal["presidio", "ner", "dictionary", "regex", "rare_words", "column"]
    """presidio: a recogniser of Presidio by rules, without a model. ner: a named-entity model.
    dictionary: words of a private file. regex: a pattern. rare_words: words near a quantile of word
    frequency (SecPE 4.2). column: values of a column of the source."""
    prior: float = Field(1e-4, gt=0, lt=1)
    """p in (0, 1): chance with which an attacker names the secret beforehand."""
    posterior: float = Field(1e-3, gt=0, lt=1)
    """r in (p, 1): chance afterwards, at most, over all releases of the cohort."""
    max_records: int = Field(ge=1)
    """Records that hold one secret of this kind, at most (>= 1): a public constant, never counted
    from the records. A secret in more records keeps a weaker bound."""
    each: Literal["value", "kind"] = "value"
    """value: every value found is a secret. kind: all records with one share one secret, that they
    hold any."""
    entity: str | None = None
    """Entity to look for (presidio, ner), e.g. EMAIL_ADDRESS, PERSON."""
    min_score: float = Field(0.3, ge=0, le=1)
    """Least confidence that counts (presidio, ner)."""
    model: str | None = None
    """Named-entity model (ner): a folder, an installed package (spacy) or a hub id
    (transformers)."""
    framework: Literal["spacy", "transformers"] = "spacy"
    """What loads the named-entity model (ner)."""
    path: Annotated[str | None, IS_PATH] = None
    """Text file with one secret a line (dictionary); stays private."""
    pattern: str | None = None
    """Regular expression (regex)."""
    ignore_case: bool = True
    """Whether case is ignored (dictionary, regex)."""
    quantile: float = Field(0.2, ge=0, le=1)
    """Place in the vocabulary, rarest first, around which words are secrets (rare_words), in [0,
    1]."""
    words: int = Field(20, ge=1)
    """Number of such words (rare_words), >= 1."""
    column: str | None = None
    """Column of the source whose values are secrets (column)."""

    examples: list[PublicWord] = Field(default_factory=list)
    """Made-up values of this kind, public, planted in public text to measure how many the detector
    misses. Empty: invented ones, for entities whose look is known."""

    def refusals(self) -> Iterator[Refusal]:
        """A bound that no release can keep, fields of another detector, a broken pattern."""
        if self.posterior <= self.prior:
            yield Refusal(
                "posterior",
                f"more than the prior {declared(self.prior)}",
                "A release cannot lower what was known before: raise posterior, or lower prior.",
                declared(self.posterior),
            )
        yield from unfit(self, "detector", _OWN)
        try:
            re.compile(self.pattern or "")
        except re.error as error:
            got = f"one that fails ({error.msg})"
            yield Refusal("pattern", "a regular expression", "Fix it.", got)


class SecretsSpec(Declaration):
    """Secrets of the records, and the (p, r)-protection each is promised."""

    adjacency: Literal["removal", "substitution"] = "removal"
    """removal: a neighbour lacks every record with the secret. substitution: those records are
    there with other content; all of them are charged, sampled or not."""
    kinds: list[SecretKindSpec] = Field(min_length=1)
    """Kinds of secrets (>= 1)."""
    public_incidence: Annotated[str | None, IS_PATH] = None
    """Parquet file with columns record_id, secret and kind: which record holds which secret,
    DECLARED PUBLIC. Only then may sampling follow the secrets (linear program of SecPE). None:
    private, every record is sampled alike. Needs columns.id."""
    planted: int = Field(200, ge=0, le=10_000)
    """Secrets of each kind planted in public text to measure the detectors' recall (>= 0; 0: not
    measured)."""

    @property
    def relation(self) -> NeighboringRelation:
        """The neighbours of a secret."""
        removed = self.adjacency == "removal"
        return NeighboringRelation.ADD_REMOVE if removed else NeighboringRelation.REPLACE_ONE

    @property
    def max_records(self) -> int:
        """Records that hold one secret of any kind, at most."""
        return max(kind.max_records for kind in self.kinds)

    @property
    def bounds(self) -> tuple[tuple[float, float], ...]:
        """Every different (p, r), in declared order."""
        return tuple(dict.fromkeys((kind.prior, kind.posterior) for kind in self.kinds))

    def refusals(self) -> Iterator[Refusal]:
        """Kinds of one name."""
        yield from twice("kinds", [kind.name for kind in self.kinds], "Rename one of them.")


def incidence_digest(secrets: SecretsSpec) -> str:
    """Identity of the declared file: another one is another plan. "" where none is declared."""
    if not secrets.public_incidence:
        return ""
    path = Path(secrets.public_incidence).expanduser()
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.is_file() else "missing"
