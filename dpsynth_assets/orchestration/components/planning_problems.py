"""What keeps the methods of a dataset file from being planned: then nothing of it can run."""

from dataclasses import replace
from pathlib import Path

from dpsynth_assets.datasets import DatasetFileError, PrivateDatasetSpec, Problem, suggest

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
        plan_dataset(spec)
    except Exception as error:  # noqa: BLE001 - methods of other packages may raise anything
        return [
            Problem(
                file="",
                field="methods",
                expected="settings whose cost can be computed",
                got=f"a refusal ({message_of(error).rstrip('.')})",
                remedy="Mend what it names.",
            )
        ]
    return []


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
    given: dict[str, tuple[str, tuple[str, ...]]] = {"name": (spec.name, RESERVED_NAMES)}
    given |= {
        f"methods.{index}.name": (method.key, (RESERVED_FOLDER,))
        for index, method in enumerate(spec.methods)
    }
    return [
        Problem(
            file="",
            field=field,
            expected=f"a name other than {name!r}",
            got=repr(name),
            remedy="Choose another name: this one is taken by another part of the installation.",
        )
        for field, (name, reserved) in given.items()
        if name in reserved
    ]


def _settings_problems(spec: PrivateDatasetSpec) -> list[Problem]:
    from dpsynth_assets.methods.registry import REGISTRY, check_settings

    problems = []
    for index, method in enumerate(spec.methods):
        if method.method not in REGISTRY:
            problems.append(
                Problem(
                    file="",
                    field=f"methods.{index}.method",
                    expected="the name of a method",
                    got=repr(method.method),
                    remedy=suggest(method.method, list(REGISTRY)),
                )
            )
            continue
        problems += [
            Problem(
                file="",
                field=f"methods.{index}",
                expected=f"settings that {method.method!r} accepts",
                got=message.rstrip("."),
                remedy="Mend the method's name or settings.",
            )
            for message in check_settings(method.method, method.settings)
        ]
    return problems
