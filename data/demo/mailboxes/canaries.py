"""Canaries: random codes planted in the private corpus, which public text cannot compose.

A code is four blocks such as `X7QK-4Z9W-...`, letters and digits mixed inside every block. Public
text has words of letters, numbers, and account numbers whose letters and digits never share a
block, so a block in a synthetic corpus can only come from the private records.
"""

from random import Random

CANARY_COUNT = 16
BLOCKS = 3
LETTERS = "QXZJVKWY"
DIGITS = "23456789"


def planted_canaries(seed: int) -> dict[str, int]:
    """Code -> number of records it is planted in: 1, 2, 4, 8, and again from 1.

    Args:
        seed: Public seed of the demo; the codes of another seed are unrelated.
    """
    random = Random(f"canaries-{seed}")
    return {_code(random): 2 ** (index % 4) for index in range(CANARY_COUNT)}


def canary_sentence(code: str) -> str:
    """The sentence that carries a canary in a record."""
    return f"The reference is {code}."


def _code(random: Random) -> str:
    return "-".join(_block(random) for _ in range(BLOCKS))


def _block(random: Random) -> str:
    """Letter, digit, letter, digit or the reverse: letters and digits always touch."""
    pairs = (LETTERS, DIGITS) if random.random() < 0.5 else (DIGITS, LETTERS)
    return "".join(random.choice(pairs[position % 2]) for position in range(4))
