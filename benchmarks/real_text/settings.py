"""Settings of private prediction compared on public text: c, τ, k and the law they draw from.

    python benchmarks/real_text/settings.py --corpora brown abc_news

Every text is public and nothing is charged. A batch is s texts of one label, each in a context of
its own, behind the default prompt of SmolLM2 with the exact decoder. All contexts read the same
further text of the corpus, token by token; at some of its tokens the law of the next one is
computed for every setting from the same logits, by the mechanisms themselves, and compared with
the law without privacy: the mean of the contexts' next-token probabilities.

- `distance`: total variation distance to that law, the share of draws that would be others;
- `surprise`: −ln of that law at what is drawn, on average, in nats: higher than at the law's own
  draws (printed above the table), text is more random than the model's, lower, more monotonous;
- `tail`: share of draws from tokens that have less than one hundred-thousandth in that law;
- `public prompt` is what no record moves: a setting as far from the law as it carries nothing;
- `tokens`: private tokens of one batch at ε = 10 and 3, zero-out neighbours, δ = 1e-6: settings on
  lines with equal tokens cost the same.
"""

import argparse
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from prompts import CORPORA, MAX_TOKENS, texts_of

from dpsynth_assets.methods.private_prediction.method import tokens_within
from dpsynth_assets.models.decoding import open_decoder
from dpsynth_assets.models.language_model import load_language_model
from dpsynth_assets.models.prompt_templates import PromptedModel, default_templates
from dpsynth_assets.privacy.batch_terms import BatchTerms
from dpsynth_assets.privacy.clipping import clip_logits
from dpsynth_assets.privacy.difference_clipping import DifferenceTokenMechanism
from dpsynth_assets.privacy.guarantees import NeighboringRelation
from dpsynth_assets.privacy.token_selection import MeanTokenMechanism
from dpsynth_assets.public_base.making import packaged_model

DELTA = 1e-6
RARE = 1e-5
"""A token below this share is one that nobody proposes."""

TEMPERATURES = (0.75, 1.0, 1.25, 1.5)
BOUNDS = {
    "mean": (3.0, 4.0, 6.0, 8.0, 10.0),
    "median": (4.0, 6.0, 8.0, 10.0),
    "invisible_ink": (0.3, 0.6, 1.0, 2.0, 4.0),
}
SUPPORTS: dict[str, tuple[int | None, ...]] = {
    "mean": (30, 100, 300, None),
    "median": (None,),
    "invisible_ink": (30, 100, 300),
}


@dataclass
class Sums:
    """What is added up over tokens for one setting."""

    numbers: list[tuple[float, float, float]] = field(default_factory=list)

    def add(self, law: torch.Tensor, free: torch.Tensor) -> None:
        """Compares a law over V tokens with the one without privacy."""
        distance = (law - free).abs().sum() / 2
        surprise = -(law * free.clamp_min(1e-30).log()).sum()
        self.numbers.append((float(distance), float(surprise), float(law[free < RARE].sum())))

    def means(self) -> np.ndarray:
        """Distance, surprise and tail."""
        return np.mean(self.numbers, axis=0)


def laws(logits: torch.Tensor, contexts: int) -> Iterator[tuple[tuple[Any, ...], torch.Tensor]]:
    """The law of every setting, (V,), from (s + 1, V) logits whose last row is the public one."""
    batch = BatchTerms(
        expected_batch_size=contexts, relation=NeighboringRelation.ZERO_OUT, logit_slack=0.0
    )
    own, public = logits[:contexts], logits[contexts]
    rows, active = torch.zeros(contexts, dtype=torch.long), np.array([0])
    for k in SUPPORTS["mean"]:
        columns = None if k is None else public.topk(k).indices.sort().values
        for c in BOUNDS["mean"]:
            mechanism = MeanTokenMechanism(batch=batch, clip_bound=c, temperature=1.0)
            scores = mechanism.private_scores(own, rows, active, columns)[0]
            yield from tempered(("mean", c, k), scores, columns, logits.shape[1])
    for k in SUPPORTS["invisible_ink"]:
        for c in BOUNDS["invisible_ink"]:
            ink = DifferenceTokenMechanism(batch=batch, clip_bound=c, temperature=1.0, top_k=k)
            support = ink.support(public, None)
            scores = ink.private_scores(own, public, slice(0, contexts), support)
            yield from tempered(("invisible_ink", c, k), scores, support, logits.shape[1])
    for k in SUPPORTS["mean"]:
        columns = None if k is None else public.topk(k).indices
        scores = public.double() if columns is None else public[columns].double()
        yield from tempered(("public prompt", 0.0, k), scores, columns, logits.shape[1])
    for c in BOUNDS["median"]:
        clipped = np.stack([clip_logits(row, c) for row in own.double().numpy()])
        scores = torch.from_numpy(np.median(clipped, axis=0))
        yield from tempered(("median", c, None), scores, None, logits.shape[1])


def tempered(
    name: tuple[Any, ...], scores: torch.Tensor, columns: torch.Tensor | None, vocabulary: int
) -> Iterator[tuple[tuple[Any, ...], torch.Tensor]]:
    """The softmax of scores at each temperature, zero outside `columns`."""
    for temperature in TEMPERATURES:
        law = torch.softmax(scores / temperature, dim=0)
        if columns is not None:
            law = torch.zeros(vocabulary, dtype=law.dtype).index_copy_(0, columns, law)
        yield (*name, temperature), law


def tokens_bought(method: str, c: float, temperature: float, contexts: int, epsilon: float) -> int:
    """Private tokens of one batch, as a plan counts them; the median has a price of its own."""
    batch = BatchTerms(
        expected_batch_size=contexts, relation=NeighboringRelation.ZERO_OUT, logit_slack=0.0
    )
    kind = DifferenceTokenMechanism if method == "invisible_ink" else MeanTokenMechanism
    mechanism = kind(batch=batch, clip_bound=c, temperature=temperature)
    return tokens_within(mechanism.event, epsilon, DELTA)


def batches(
    model: Any, corpus: str, options: argparse.Namespace
) -> Iterator[tuple[list[list[int]], list[list[int]]]]:
    """Prompts of each label's batch, the public one last, and the texts that they read."""
    read, pool = texts_of(corpus, model, len(CORPORA[corpus][1]) * options.contexts)
    for label in CORPORA[corpus][1].values():
        shown = pool.filter(pool["label"] == label)["text"].to_list()[: options.contexts]
        texts = read.filter(read["label"] == label)["text"].to_list()[: options.texts]
        if len(shown) == options.contexts:
            prompts = [model.prompt_ids(label, [text], MAX_TOKENS) for text in shown]
            yield (
                [*prompts, model.prompt_ids(label, [], MAX_TOKENS)],
                [model.encode(text)[:MAX_TOKENS] for text in texts],
            )


def main() -> None:
    """Prints one table a corpus."""
    options = arguments()
    language_model = load_language_model(packaged_model())
    decoder = open_decoder("exact", language_model)
    for corpus in options.corpora:
        templates = default_templates(CORPORA[corpus][0], labelled=True)
        model = PromptedModel(language_model, templates)
        sums: dict[tuple[Any, ...], Sums] = defaultdict(Sums)
        for prompts, texts in batches(model, corpus, options):
            for text in texts:
                read_along(decoder, prompts, text, options, sums)
        show(corpus, sums, options)


@torch.inference_mode()
def read_along(
    decoder: Any,
    prompts: list[list[int]],
    text: list[int],
    options: argparse.Namespace,
    sums: dict[tuple[Any, ...], Sums],
) -> None:
    """Adds the laws at every n-th token of one text."""
    contexts = decoder.open(
        prompts,
        prompt_columns=max(map(len, prompts)),
        max_new_tokens=MAX_TOKENS,
    )
    for place, token in enumerate([0, *text[:-1]]):
        logits = contexts.next_logits(
            torch.full((len(prompts),), token), torch.full((len(prompts),), place)
        )
        if place % options.every:
            continue
        free = torch.softmax(logits[: options.contexts].double(), dim=1).mean(dim=0)
        sums["free",].add(free, free)
        for name, law in laws(logits, options.contexts):
            sums[name].add(law.double(), free)


def show(corpus: str, sums: dict[tuple[Any, ...], Sums], options: argparse.Namespace) -> None:
    """Prints a table of the settings that no cheaper one of their method matches."""
    free = sums.pop(("free",))
    _, surprise, tail = free.means()
    print(
        f"\n**{corpus}**: {len(free.numbers)} tokens, {options.contexts} contexts; without "
        f"privacy surprise {surprise:.2f}, tail {tail:.3f}\n"
    )
    print("| method | c | τ | k | distance | surprise | tail | tokens, ε = 10 / 3 |")
    print("|---|---|---|---|---|---|---|---|")
    lines = [
        Line(method, c, k, temperature, *each.means(), _bought(method, c, temperature, options))
        for (method, c, k, temperature), each in sums.items()
    ]
    for line in sorted(lines, key=lambda each: (each.method, each.bought, -each.distance)):
        if options.all or not any(other.beats(line) for other in lines):
            print(line, flush=True)


@dataclass(frozen=True)
class Line:
    """One setting and what it draws; `bought` are tokens of a batch at ε = 10 and 3."""

    method: str
    c: float
    k: int | None
    temperature: float
    distance: float
    surprise: float
    tail: float
    bought: tuple[int, int]

    def beats(self, other: "Line") -> bool:
        """Says whether it is nearer to the law without privacy and costs no more."""
        return (
            self.method == other.method
            and self.distance < other.distance
            and self.bought >= other.bought
        )

    def __str__(self) -> str:
        price = {"median": "ex post", "public prompt": "free"}.get(
            self.method, " / ".join(map(str, self.bought))
        )
        return (
            f"| {self.method} | {self.c:g} | {self.temperature:g} | {self.k or 'all'} | "
            f"{self.distance:.3f} | {self.surprise:.2f} | {self.tail:.3f} | {price} |"
        )


def _bought(
    method: str, c: float, temperature: float, options: argparse.Namespace
) -> tuple[int, int]:
    if method in ("median", "public prompt"):
        return (0, 0)
    ten, three = (
        tokens_bought(method, c, temperature, options.contexts, epsilon) for epsilon in (10.0, 3.0)
    )
    return ten, three


def arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpora", nargs="+", default=list(CORPORA), choices=list(CORPORA))
    parser.add_argument("--contexts", type=int, default=64)
    parser.add_argument("--texts", type=int, default=3, help="texts read by each label's batch")
    parser.add_argument("--every", type=int, default=4, help="one of how many tokens is compared")
    parser.add_argument("--all", action="store_true", help="print every setting")
    return parser.parse_args()


if __name__ == "__main__":
    main()
