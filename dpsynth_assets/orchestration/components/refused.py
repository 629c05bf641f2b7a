"""Dataset files that cannot be used: each becomes an asset that says why.

A refused file has no assets of its own, so nothing that it declares can run or be charged.
"""

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING

import dagster as dg

from dpsynth_assets.datasets import DatasetFileError, PrivateDatasetSpec, Problem, suggest
from dpsynth_assets.tags import PRIVACY, PUBLIC

if TYPE_CHECKING:
    from dpsynth_assets.methods.dataset_plan import DatasetPlan

PREFIX = "0_refused"
"""First part of the keys: no cohort has such a name, because names begin with a letter."""

GROUP = "refused_files"

REFUSED_TAG = "dpsynth/refused"

_COLUMNS = 76
"""Characters of a line that the page of an asset shows in full."""


def refused_definitions(file: Path, problems: Sequence[Problem]) -> dg.Definitions:
    """Makes one asset of a file that cannot be used; materialising it fails with its problems.

    Args:
        file: The dataset file, or the folder that is not there.
        problems: What is wrong with it, at least one.
    """
    lines = "\n".join(str(problem) for problem in problems)

    @dg.asset(
        key=[PREFIX, _slug(file)],
        group_name=GROUP,
        description=f"This dataset file cannot be used:\n\n{_quoted(lines)}\n\nFix it, then "
        "reload the definitions. Until then nothing that it declares can run or be charged.",
        metadata={"file": dg.MetadataValue.path(str(file)), "problems": lines},
        tags={PRIVACY: PUBLIC, REFUSED_TAG: ""},
    )
    def refused() -> None:
        raise dg.Failure(description=lines, allow_retries=False)

    return dg.Definitions(assets=[refused])


def contained(file: Path, build: Callable[[], dg.Definitions]) -> dg.Definitions:
    """Builds the definitions of a file; where that fails, the asset that says why.

    A file is public and no record is read here, so the error is always shown.
    """
    try:
        return build()
    except DatasetFileError as error:
        return refused_definitions(file, error.problems)
    except Exception as error:  # noqa: BLE001 - any error of a method must not harm other files
        problem = Problem(
            file=str(file),
            field="",
            expected="a declaration that can be planned",
            got=f"a refusal ({message_of(error).rstrip('.')})",
            remedy="Fix what the refusal names; `dpsynth datasets check` names the field.",
        )
        return refused_definitions(file, [problem])


def _slug(file: Path) -> str:
    """A name for the key of a file: readable, and of this path alone."""
    own = file.parent.name if file.stem == "defs" else file.stem
    digest = hashlib.sha256(str(file.resolve()).encode()).hexdigest()[:6]
    return f"{re.sub(r'[^A-Za-z0-9_]', '_', own)[:40]}_{digest}"


def _quoted(text: str) -> str:
    """Text as a Markdown block that is shown as it is, HTML and links included, and wraps."""
    wrapped = (part for line in text.splitlines() for part in wrap(line, _COLUMNS) or [""])
    return "\n".join(f"    {part}" for part in wrapped)


# What keeps the methods of a dataset file from being planned: then nothing of it can run.


RESERVED_NAMES = ("public", "releases")
"""First part of the keys of all public bases, and folder of all stored releases."""

RESERVED_FOLDER = "shared"
"""Part of the keys of what all methods of a cohort share."""


def planning_problems(spec: PrivateDatasetSpec) -> list[Problem]:
    """Reports unknown methods and settings, or why no plan can be made.

    The caller names the file. A plan that refuses some of its methods is a plan: the others run.
    Reads no record.
    """
    from dpsynth_assets.methods.planning import plan_dataset

    if problems := [*_reserved_names(spec), *_settings_problems(spec)]:
        return problems
    try:
        plan = plan_dataset(spec)
    except Exception as error:  # noqa: BLE001 - methods of other packages may raise anything
        got = f"a refusal ({message_of(error).rstrip('.')})"
        expected = "settings whose cost can be computed"
        return [Problem("methods", expected, got, "Fix what the refusal names.")]
    return _row_problems(spec, plan)


def require_plan(spec: PrivateDatasetSpec, file: Path) -> None:
    """Checks that a file can be planned.

    Raises:
        DatasetFileError: It cannot; with a line for each reason.
    """
    if problems := planning_problems(spec):
        raise DatasetFileError([replace(problem, file=str(file)) for problem in problems])


def message_of(error: Exception) -> str:
    """The message of an error in one line; its type where it has none."""
    text = " ".join(str(error.args[0] if error.args else "").split())
    return text or type(error).__name__


def _reserved_names(spec: PrivateDatasetSpec) -> list[Problem]:
    """Names that other parts of the asset graph have: keys and folders would coincide."""
    given: list[tuple[str, str, tuple[str, ...]]] = [("name", spec.name, RESERVED_NAMES)]
    given += [
        (f"methods.{index}.name", method.key, (RESERVED_FOLDER,))
        for index, method in enumerate(spec.methods)
    ]
    remedy = "Choose another name: this one is taken by another part of the installation."
    return [
        Problem(field, f"a name other than {name!r}", repr(name), remedy)
        for field, name, reserved in given
        if name in reserved
    ]


def _settings_problems(spec: PrivateDatasetSpec) -> list[Problem]:
    from dpsynth_assets.methods.registry import REGISTRY, check_settings

    problems = []
    for index, method in enumerate(spec.methods):
        field, name = f"methods.{index}", method.method
        if name not in REGISTRY:
            remedy = suggest(name, list(REGISTRY))
            problems.append(Problem(f"{field}.method", "the name of a method", repr(name), remedy))
            continue
        problems += [
            replace(problem, field=f"{field}.settings.{problem.field}".rstrip("."))
            for problem in check_settings(name, method.settings)
        ]
    return problems


def _row_problems(spec: PrivateDatasetSpec, plan: "DatasetPlan") -> list[Problem]:
    """Checks that a schedule asks for rows of some corpus whose rows are free."""
    schedule = spec.schedule
    if schedule is None or schedule.rows is None:
        return []
    asked = schedule.methods
    chosen = [each for each in plan.methods if not asked or each.folder in asked]
    if any(planned.writing is not None for planned in chosen):
        return []
    expected = "a scheduled corpus of a method that writes any number of rows at no cost"
    remedy = "The budget determines the rows of these corpora: drop rows, or name another corpus."
    return [Problem("schedule.rows", expected, ", ".join(each.folder for each in chosen), remedy)]
