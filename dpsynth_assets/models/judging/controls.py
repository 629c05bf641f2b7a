"""Texts whose order of quality is known: a judge that cannot tell them apart judges nothing.

A form makes every model answer with scores, also one that does not understand the question. So a
judge scores plain sentences and the same words out of order before it scores a row.
"""

from collections.abc import Callable, Sequence

from dpsynth_assets.models.judging.judge import JudgeError
from dpsynth_assets.models.judging.rubric import RubricScores

PLAIN = (
    "The library opens at nine on weekdays. On Saturdays it closes at noon, so please bring your "
    "books back before then.",
    "We ordered two soups and a salad. The soups came hot and quickly, but the salad took half an "
    "hour and the waiter forgot the bread.",
    "My new bicycle is light and easy to ride. I use it every morning to get to the station, which "
    "takes about ten minutes.",
    "The council voted on Monday to repair the old bridge. Work will begin in spring and should "
    "end before the first snow.",
)
"""Written for this purpose; public."""


def shuffled(text: str) -> str:
    """The words of a text in a fixed order that is not theirs: every third one, three times."""
    words = text.split()
    return " ".join(word for start in (2, 0, 1) for word in reversed(words[start::3]))


def require_discernment(
    score: Callable[[Sequence[str]], list[RubricScores | None]], name: str
) -> tuple[float, float] | None:
    """Has a judge score the control texts.

    Args:
        score: Scores texts.
        name: Name of the judge.

    Returns:
        Mean overall score of plain and of shuffled texts; None where an answer held no scores, of
        which the rows themselves will tell.

    Raises:
        JudgeError: It does not score plain texts above shuffled ones.
    """
    scores = score([*PLAIN, *map(shuffled, PLAIN)])
    overall = [each.overall for each in scores if each is not None]
    if len(overall) < len(scores):
        return None
    half = len(PLAIN)
    plain, mixed = sum(overall[:half]) / half, sum(overall[half:]) / half
    if plain <= mixed:
        raise JudgeError(
            f"Expected a judge that scores plain sentences above the same words out of order, got "
            f"{plain:g} and {mixed:g} from {name}; take an instruction-tuned model, or judge: "
            "likelihood."
        )
    return plain, mixed
