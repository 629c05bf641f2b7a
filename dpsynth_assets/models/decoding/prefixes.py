"""Public text that prompts begin with, read once for all of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile

PROBES = ("a", "The", "I was", "7", "\n", '"', "été", "{")
"""Public examples, which begin as differently as texts do."""


def public_prefix(prompt_of: Callable[[str], Sequence[int]]) -> list[int]:
    """Finds the tokens with which a template begins whatever the example is.

    Args:
        prompt_of: Writes the prompt with an example, as token ids.

    Returns:
        The longest common prefix of the prompts of fixed public examples: a tokenizer may join a
        template's last letters with an example's first, and such tokens are left out.

    **Privacy** A function of public text alone. No private prompt is looked at.
    """
    prompts = [list(prompt_of(probe)) for probe in PROBES]
    alike = takewhile(lambda column: len(set(column)) == 1, zip(*prompts, strict=False))
    return [column[0] for column in alike]


@dataclass(frozen=True)
class PrefixGroup:
    """Prompts that begin with the same public prefix.

    Attributes:
        prefix: Public token ids; empty for prompts without one.
        prompts: Indices of its prompts.
    """

    prefix: tuple[int, ...]
    prompts: tuple[int, ...]


def prefix_groups(
    prompts: Sequence[Sequence[int]], prefixes: Sequence[Sequence[int]]
) -> list[PrefixGroup]:
    """Assigns each prompt to the longest of the public prefixes that it begins with.

    Returns:
        A group for every prefix that has a prompt, and one for prompts that begin with none.

    **Privacy** Which prefix a prompt takes depends on that prompt and on public prefixes only.
    """
    ordered = sorted({tuple(prefix) for prefix in prefixes} | {()}, key=len, reverse=True)
    members: dict[tuple[int, ...], list[int]] = {prefix: [] for prefix in ordered}
    for index, prompt in enumerate(prompts):
        own = next(prefix for prefix in ordered if tuple(prompt[: len(prefix)]) == prefix)
        members[own].append(index)
    return [PrefixGroup(prefix, tuple(own)) for prefix, own in members.items() if own]
