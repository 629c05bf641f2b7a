"""Public documents that a language model writes from what its user says in public words.

They stand where the texts of a domain would: clusters, topics and first populations made from them
lie nearer the records than those of general text, and no record is read.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from dpsynth_assets.models.engines import Engine, Provenance, Sampling
from dpsynth_assets.models.language_model import LanguageModelError
from dpsynth_assets.models.prompt_templates import TOP_K, PromptTemplates, prompted

if TYPE_CHECKING:
    import polars as pl

CODE_VERSION = "2"
"""Raised when the same words give other documents."""

LEAST_WORDS = 8
"""Shorter texts are headings and fragments."""

_ROUNDS = 5
_SPARE = 1.3
"""So many times what is missing is written in a round: some texts are short or repeated."""


@dataclass
class _Collected:
    """Documents of one label, different from all others."""

    wanted: int
    texts: list[str] = field(default_factory=list)

    @property
    def asked(self) -> int:
        """Texts to write in the next round."""
        missing = self.wanted - len(self.texts)
        return int(np.ceil(_SPARE * missing)) if missing else 0


def invent_documents(
    engine: Engine,
    language_model: Any,
    *,
    templates: PromptTemplates,
    labels: Sequence[str],
    documents: int,
    max_tokens: int,
    seed: int,
    report: Callable[[float, str], None],
) -> "pl.DataFrame":
    """Writes different documents, as many of each label: temperature 1 among the likeliest tokens.

    Args:
        engine: Runs the language model.
        language_model: Its tokens.
        templates: Prompts of the domain, which say what the texts are.
        labels: Kinds of text; empty: the domain alone.
        documents: Documents asked for (>= 1). Fewer come where the model repeats itself.
        max_tokens: Longest document, in tokens.
        seed: Seed of the sampling.
        report: Called with the share done in [0, 1] and a short message.

    Returns:
        Columns `text` and `label`, one label after the other in turn.

    Raises:
        LanguageModelError: The model wrote no document of some label.

    **Privacy** Reads public words alone: ε = 0.

    **Source** Xie et al. 2024, RANDOM_API, and EPSVec, appendix B.3: a public model begins without
    examples.
    """
    import polars as pl

    model = prompted(language_model, templates)
    names = list(labels) or [""]
    shares = [documents // len(names) + (i < documents % len(names)) for i in range(len(names))]
    kept = [_Collected(share) for share in shares]
    seen: set[str] = set()
    for number in range(_ROUNDS):
        rows = [index for index, own in enumerate(kept) for _ in range(own.asked)]
        if not rows:
            break
        done = sum(len(own.texts) for own in kept)

        def told(share: float, done: int = done) -> None:
            report((done + share * (documents - done)) / documents, "inventing public documents")

        made = engine.generate(
            [model.prompt_ids(names[index], [], 1) for index in rows],
            Sampling(
                temperature=1.0,
                top_k=TOP_K,
                max_new_tokens=max_tokens,
                seed=int(np.random.SeedSequence([seed, number]).generate_state(1)[0]),
                stop=("\n",),
            ),
            provenance=Provenance.PUBLIC,
            progress=told,
        )
        for index, each in zip(rows, made, strict=True):
            _keep(kept[index], model.decode(list(each.token_ids)).strip(), seen)
    if not all(own.texts for own in kept if own.wanted):
        raise LanguageModelError(
            f"Expected {engine.name} to write documents of every label, got none of at least one. "
            "Say in domain and labels what the texts are, or name a source of public documents."
        )
    turns = range(max(shares))
    found = [
        (own.texts[turn], name)
        for turn in turns
        for own, name in zip(kept, names, strict=True)
        if turn < len(own.texts)
    ]
    return pl.DataFrame(found, schema={"text": pl.String, "label": pl.String}, orient="row")


def _keep(own: _Collected, text: str, seen: set[str]) -> None:
    """Keeps a text that is long enough, wanted and new; case and spacing make none new."""
    words = text.casefold().split()
    key = " ".join(words)
    if len(words) < LEAST_WORDS or len(own.texts) >= own.wanted or key in seen:
        return
    seen.add(key)
    own.texts.append(text)
