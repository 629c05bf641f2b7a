"""Measures on public contexts how far the other rows of a pass change a row's logits.

What is drawn from private contexts is covered by its sensitivity only where a row's logits follow
its own tokens, or move by no more than the slack that is charged. Here public contexts are decoded
in one company after another: alone, in another order, with rows taken away, added and replaced,
beside longer and shorter prompts and documents, which pad them otherwise. What a logit moved by
between any two companies is a lower bound of the slack, for every decoder there is.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, astuple, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch

    from dpsynth_assets.models.decoding import Contexts, Decoder

NAME = "logit-slack"
"""The audit, among those of mechanisms and, behind a cohort's name, on record."""
WATCHED, STEPS = 8, 6
"""Contexts whose logits are compared, and tokens of each where passes are not tried whole."""
_COMPARED_STEPS = 32
"""Steps whose logits are compared at most: the first, the last, and others between."""
MOST_ROWS = 128
"""Rows of the largest company that is tried."""
_SHARED = 40
"""Tokens that every other prompt begins with."""

OpenRows = Callable[[Sequence[Sequence[int]]], "Contexts"]
"""Prompts -> their contexts, in one forward pass."""


@dataclass(frozen=True, kw_only=True)
class PassShape:
    """The most that a pass of a run holds: public numbers.

    Attributes:
        rows: Rows.
        columns: Tokens of a prompt.
        new_tokens: Tokens of a document.
    """

    rows: int = MOST_ROWS
    columns: int = 160
    new_tokens: int = STEPS

    def covers(self, other: "PassShape") -> bool:
        """Says whether passes of the other shape are no larger in any way."""
        return all(mine >= its for mine, its in zip(astuple(self), astuple(other), strict=True))


@dataclass(frozen=True, kw_only=True)
class LogitMoves:
    """What was measured of one decoder.

    Attributes:
        by: Largest move of a logit (natural-log units); infinity where one is no number.
        contexts: Public contexts.
        companies: Ways in which they shared passes.
        passes: Rows of the largest company, tokens of a prompt, and steps.
        engine: What computed logits, with its version.
        device: Where.
        dtype: In which numbers.
    """

    by: float
    contexts: int
    companies: int
    passes: PassShape
    engine: str
    device: str
    dtype: str

    @property
    def over(self) -> str:
        """Says in words what was tried, and on what."""
        return (
            f"{self.contexts} public contexts in {self.companies} arrangements of up to "
            f"{self.passes.rows} rows, {self.passes.columns} tokens and {self.passes.new_tokens} "
            f"steps, {self.engine}, {self.device}, {self.dtype}"
        )

    @property
    def facts(self) -> dict[str, Any]:
        """What charges and records keep of it."""
        facts = asdict(self)
        passes = facts.pop("passes")
        return {**facts, **passes}


def measured_moves(
    decoder: "Decoder",
    language_model: Any,
    passes: PassShape = PassShape(),
    disturbed: Callable[[OpenRows], OpenRows] = lambda opened: opened,
    *,
    whole: bool = False,
) -> LogitMoves:
    """Decodes public contexts in many companies; the largest difference of a logit of any of them.

    Args:
        decoder: What decodes.
        language_model: Its tokenizer.
        passes: Shape of the passes, cut to what the decoder takes and, but for `whole`, to
            `MOST_ROWS`.
        disturbed: Puts a planted mistake between; none by default.
        whole: Whether passes are as large and documents as long as they are in a run, and each
            company is tried twice: kernels may differ by size, and from one time to the next.

    Raises:
        ValueError: The decoder does not take such contexts.
    """
    from dpsynth_assets.models.exact_decoder.opening import TEXTS

    new_tokens = max(passes.new_tokens, STEPS)
    limit = decoder.attention_limit or passes.columns + new_tokens
    columns = max(1, min(passes.columns, limit - new_tokens))
    most = max(passes.rows, WATCHED + 1)
    most = most if whole else min(most, MOST_ROWS)
    rows = decoder.rows_at_once(most, columns + new_tokens)
    steps = new_tokens if whole else STEPS

    def opened(prompts: Sequence[Sequence[int]]) -> "Contexts":
        return decoder.open(prompts, prompt_columns=columns, max_new_tokens=new_tokens)

    texts = [list(language_model.encode(text)) for text in TEXTS]
    tried = list(companies(rows)) * (2 if whole else 1)
    contexts = 1 + max(map(max, tried))
    prompts = [_prompt(number, texts, columns) for number in range(contexts)]
    by = _largest_move(disturbed(opened), prompts, tried, steps)
    return LogitMoves(
        by=by,
        contexts=contexts,
        companies=len(tried),
        passes=PassShape(rows=max(map(len, tried)), columns=columns, new_tokens=steps),
        **decoder.facts,
    )


def companies(rows: int) -> Iterator[list[int]]:
    """Yields the contexts of each pass, of which the first `WATCHED` ones are compared.

    The last of each size has the same number of rows as one before, in the same places, but others
    are beside the compared ones.
    """
    watched = list(range(min(WATCHED, rows)))
    yield watched
    yield watched[::-1]
    for removed in (1, 2, 5):
        yield watched[removed:]
    for one in watched[::2]:
        yield [one]
    for added in sorted({1, 7, 9, 25, rows - WATCHED}):
        if 0 < added <= rows - WATCHED:
            others = list(range(rows - added, rows))
            yield [*others, *watched]
            yield np.random.default_rng(added).permutation([*watched, *others]).tolist()
            yield [*range(rows, rows + added), *watched]


def _prompt(number: int, texts: Sequence[Sequence[int]], columns: int) -> list[int]:
    """Public tokens of a length of its own; every other prompt begins with the same ones."""
    length = 1 + (number * 37 + 59) % columns
    begin = list(texts[0][:_SHARED]) if number % 2 else []
    own = list(texts[number % len(texts)])
    return (begin + own[number % 7 :] + own * (1 + length // len(own)))[:length]


def _largest_move(
    opened: OpenRows,
    prompts: Sequence[Sequence[int]],
    tried: Sequence[Sequence[int]],
    steps: int,
) -> float:
    """Keeps the least and the largest of each logit; memory is that of the compared rows."""
    import torch

    least: dict[int, torch.Tensor] = {}
    most: dict[int, torch.Tensor] = {}
    for company in tried:
        for number, logits in _decoded(opened, prompts, company, steps).items():
            least[number] = torch.minimum(least.get(number, logits), logits)
            most[number] = torch.maximum(most.get(number, logits), logits)
    moves = [(most[number] - least[number]).double().max() for number in least]
    by = float(torch.stack(moves).max())
    return by if by == by else float("inf")


def _decoded(
    opened: OpenRows, prompts: Sequence[Sequence[int]], company: Sequence[int], steps: int
) -> "dict[int, torch.Tensor]":
    """Logits (compared steps, V) of the compared rows; documents end at lengths of their own."""
    import torch

    own = [prompts[number] for number in company]
    lengths = [steps - 5 * number % steps for number in company]
    contexts = opened(own)
    places = [place for place, number in enumerate(company) if number < WATCHED]
    compared = set(np.linspace(0, steps - 1, min(steps, _COMPARED_STEPS)).astype(int).tolist())
    seen = []
    for step in range(steps):
        tokens = torch.tensor([prompt[step % len(prompt)] for prompt in own])
        written = torch.tensor([step % length for length in lengths])
        logits = contexts.next_logits(tokens, written)
        if step in compared:
            seen.append(logits[torch.tensor(places, device=logits.device)].float().cpu())
    return {
        company[place]: logits for place, logits in zip(places, torch.stack(seen, 1), strict=True)
    }
