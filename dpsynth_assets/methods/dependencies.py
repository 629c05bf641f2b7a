"""Dependencies of planned methods: the topic histogram and one another's corpora, or why not.

A method whose inputs are not there is refused, and what cannot be is left out of its links: so the
asset graph stays whole, and one mistaken dataset file never keeps the other cohorts from opening.

**Privacy** Post-processing inherits the guarantee of what it reads: rows chosen from a corpus that
is not (ε, δ)-DP are not (ε, δ)-DP, whatever chooses them. So a method may build on a corpus only if
every step behind it is.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from dpsynth_assets.methods.capabilities import BuildsOn, capability, corpora_named, reads_weights
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.ledger import Provenance

if TYPE_CHECKING:
    from dpsynth_assets.methods.dataset_plan import PlannedMethod, PlannedShared


Part: TypeAlias = "PlannedMethod | PlannedShared"
"""What releases in stages: a planned method, or a histogram that methods share."""

Methods: TypeAlias = "Mapping[str, PlannedMethod]"
"""All methods of one dataset file by folder."""

_IN_WORDS = {
    GuaranteeType.EX_POST: "ex-post: its bound depends on the records",
    GuaranteeType.SECRET: "for secrets alone",
    GuaranteeType.NONE: "without any guarantee",
}


@dataclass(frozen=True, kw_only=True)
class InputProblem:
    """Why a method cannot have an input that its settings name.

    Attributes:
        field: What to mend in the dataset file: a key of the file, or below the method's entry.
        of_method: Whether `field` lies below the method's entry.
        expected: What should be there.
        got: What is there; public words of the dataset file.
        remedy: What to do, a sentence.
    """

    field: str
    of_method: bool = True
    expected: str
    got: str
    remedy: str

    def __str__(self) -> str:
        """Writes the line that a plan refuses with."""
        return f"Expected {self.expected}, got {self.got}. {self.remedy}"


def input_problems(
    planned: "PlannedMethod", known: Methods, *, has_topics: bool
) -> list[InputProblem]:
    """Lists what a method builds on that is not there; empty if all of it is."""
    topics = [] if has_topics else _topic_problems(planned)
    found = [_corpus_problem(planned, folder, known) for folder in corpora_named(planned.method)]
    return topics + [problem for problem in found if problem is not None]


def readable_corpora(planned: "PlannedMethod", known: Methods) -> tuple[str, ...]:
    """Folders that a method's settings name and whose corpora it can read, without a circle."""
    named = corpora_named(planned.method)
    return tuple(folder for folder in named if _unreadable(planned, folder, known) is None)


def refusal_for_inputs(planned: "PlannedMethod", known: Methods, *, has_topics: bool) -> str | None:
    """What is wrong with its own inputs, or else which method behind it is refused."""
    if problems := input_problems(planned, known, has_topics=has_topics):
        return str(problems[0])
    for folder in _Named(known).behind(planned.folder):
        other = known[folder]
        why = [other.plan.refusal, *input_problems(other, known, has_topics=has_topics)]
        if any(why):
            return (
                f"Expected {folder}, which {planned.folder} builds on, to be possible, got a "
                f"refusal. Fix {folder} first."
            )
    return None


def _topic_problems(planned: "PlannedMethod") -> list[InputProblem]:
    if planned.writing is None or not planned.writing.follows_topics:
        return []
    return [
        InputProblem(
            field="topic_histogram",
            of_method=False,
            expected=f"the released histogram of topics, which {planned.folder} follows",
            got="none",
            remedy=f"Declare topic_histogram, or drop {planned.folder} or the setting that asks "
            "for it.",
        )
    ]


def _corpus_problem(planned: "PlannedMethod", folder: str, known: Methods) -> InputProblem | None:
    """Why a method may not build on the corpus of one folder."""
    if (problem := _unreadable(planned, folder, known)) is not None:
        return problem
    steps = [known[folder], *(known[name] for name in _Named(known).behind(folder))]
    other = next((p for p in steps if p.plan.guarantee is not GuaranteeType.DP), None)
    if other is not None:
        return InputProblem(
            field="settings",
            expected=f"a DP corpus for {planned.folder} to build on",
            got=f"{other.folder}, which is {_IN_WORDS[other.plan.guarantee]}",
            remedy="Rows of it are no more private than it is: name the folder of a DP method.",
        )
    return _no_generator(planned, known[folder]) or _nothing_to_choose(planned, known[folder])


def _no_generator(planned: "PlannedMethod", other: "PlannedMethod") -> InputProblem | None:
    """Why the corpus of another method has no fine-tuned language model behind it."""
    fine_tunes = any(stage.releases_language_model for stage in other.plan.stages)
    if not reads_weights(planned.method) or fine_tunes:
        return None
    return InputProblem(
        field="settings",
        expected=f"the folder of a method that fine-tunes a language model, for {planned.folder}",
        got=f"{other.folder}, which fine-tunes none",
        remedy="Name one such as ctcl, over a public base with conditional_generator: "
        "{kind: language_model}.",
    )


def _unreadable(planned: "PlannedMethod", folder: str, known: Methods) -> InputProblem | None:
    """Why there is no corpus of a folder that a method could read at all."""
    name = f"the folder of another method, whose corpus {planned.folder} reads"
    remedy = f"Corpora of this file: {', '.join(_readable(planned, known)) or 'none'}."
    if folder not in known:
        return InputProblem(field="settings", expected=name, got=repr(folder), remedy=remedy)
    if planned.folder in {folder, *_Named(known).behind(folder)}:
        got = f"{folder!r}, which is built on {planned.folder} itself"
        return InputProblem(field="settings", expected=name, got=got, remedy=remedy)
    if not known[folder].writes_corpus:
        got = f"{folder!r}, which writes no corpus"
        return InputProblem(field="settings", expected=name, got=got, remedy=remedy)
    return None


def _nothing_to_choose(planned: "PlannedMethod", other: "PlannedMethod") -> InputProblem | None:
    """Whoever asks for all rows of a corpus, or for more, gets that corpus under another name."""
    own, others = planned.writing, other.writing
    built = capability(planned.method, BuildsOn)
    if built is None or not built.chooses_rows or own is None or others is None:
        return None  # How many rows a corpus of one release has is known once it was made.
    asked, there = own.rows, others.rows
    if asked < there:
        return None
    return InputProblem(
        field="settings.rows",
        expected=f"fewer rows than {other.folder} writes ({there}), to choose among them",
        got=str(asked),
        remedy=f"Lower rows of {planned.folder}, or raise those of {other.folder}, which are free.",
    )


def _readable(planned: "PlannedMethod", known: Methods) -> list[str]:
    return [
        folder
        for folder, other in known.items()
        if other.writes_corpus and planned.folder not in {folder, *_Named(known).behind(folder)}
    ]


class _Named(Provenance):
    """Methods of a dataset file, with the others that their settings name: a circle, perhaps."""

    def __init__(self, known: Methods) -> None:
        self._known = known

    def reads(self, name: str) -> list[str]:
        """Folders that a method's settings name and that are there."""
        return [each for each in corpora_named(self._known[name].method) if each in self._known]
