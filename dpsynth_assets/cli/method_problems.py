"""Problems that methods find in a dataset file: settings, dependencies, plans."""

import re
from typing import TYPE_CHECKING

from dpsynth_assets.datasets import PrivateDatasetSpec, Problem
from dpsynth_assets.datasets.declared_bases import declared_base
from dpsynth_assets.datasets.prompt_words import prompt_problems
from dpsynth_assets.orchestration.components.planning_problems import planning_problems

if TYPE_CHECKING:
    from dpsynth_assets.methods.dataset_plan import PlannedMethod
    from dpsynth_assets.methods.dependencies import InputProblem

_REFUSAL = re.compile(r"Expected (.+?), got (.+?)\.(?: (.+))?")
"""The three parts of a plan's refusal; the last one may be missing."""


def method_problems(spec: PrivateDatasetSpec) -> list[Problem]:
    """Asks methods about their names, settings, inputs and plans; the caller names the file."""
    words = prompt_problems(spec, declared_base(spec.public_data))
    return planning_problems(spec) or [*words, *_plan_problems(spec), *_row_problems(spec)]


def _plan_problems(spec: PrivateDatasetSpec) -> list[Problem]:
    """Says which methods lack an input and which promises to secrets break (errors).

    And which methods the plan refuses else (warnings).
    """
    from dpsynth_assets.methods.dependencies import input_problems
    from dpsynth_assets.methods.planning import plan_dataset
    from dpsynth_assets.methods.promised_secrets import promise_problems

    plan = plan_dataset(spec)
    known = {planned.folder: planned for planned in plan.methods}
    found = []
    for index, planned in enumerate(plan.methods):
        lacking = input_problems(planned, known, has_topics=plan.topics is not None)
        found += [_as_problem(problem, index) for problem in lacking]
        if planned.plan.refusal is not None and not lacking:
            found.append(_refused(planned, index))
    return found + promise_problems(spec, plan)


def _as_problem(problem: "InputProblem", index: int) -> Problem:
    return Problem(
        file="",
        field=f"methods.{index}.{problem.field}" if problem.of_method else problem.field,
        expected=problem.expected,
        got=problem.got,
        remedy=problem.remedy,
    )


def _refused(planned: "PlannedMethod", index: int) -> Problem:
    """A method that will not run as declared; the others of the file will."""
    refusal = str(planned.plan.refusal)
    parts = _REFUSAL.fullmatch(refusal)
    if parts is None:
        expected, got, remedy = "a method that can run", f"a refusal of {planned.folder}", refusal
    else:
        expected, got, remedy = parts[1], parts[2], parts[3] or "Change what it depends on."
    return Problem(
        file="",
        field=f"methods.{index}",
        expected=expected,
        got=got,
        remedy=remedy,
        severity="warning",
    )


def _row_problems(spec: PrivateDatasetSpec) -> list[Problem]:
    """Checks that a schedule asks for rows of some corpus whose rows are free."""
    from dpsynth_assets.methods.registry import get_method

    schedule = spec.schedule
    if schedule is None or schedule.rows is None:
        return []
    chosen = [m for m in spec.methods if not schedule.methods or m.key in schedule.methods]
    methods = [get_method(entry.method) for entry in chosen]
    if any(method.rows_are_free and method.writes_corpus for method in methods):
        return []
    return [
        Problem(
            file="",
            field="schedule.rows",
            expected="a corpus whose rows cost nothing among those that are made",
            got=", ".join(entry.key for entry in chosen),
            remedy="Their rows follow from the budget: drop rows, or name another corpus.",
        )
    ]
