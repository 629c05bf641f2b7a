"""`dpsynth plan`: what every declared release would cost, before private data is read.

`--prompts` shows what the language model is asked, in the words that it reads.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from operator import itemgetter
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from dpsynth_assets.cli.cohorts import CohortName, find_cohort
from dpsynth_assets.cli.terminal import AsJson, answer, say, show_table
from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.datasets.public_spec import DEFAULT_DECODER
from dpsynth_assets.privacy.directed_rounding import declared, epsilon_up, rounded_down, rounded_up

if TYPE_CHECKING:
    from dpsynth_assets.models.prompt_templates import PromptTemplates


def plan(
    cohort: CohortName,
    everything: Annotated[bool, typer.Option("--all")] = False,
    as_json: AsJson = False,
    prompts: Annotated[bool, typer.Option("--prompts")] = False,
) -> None:
    """Show the privacy cost of each release, from public facts; exit code 2 if one is refused.

    Args:
        cohort: Name of a declared private dataset.
        everything: Also show the cost of methods that the file does not name.
        as_json: Print JSON.
        prompts: Print the prompts of the language model for each label.
    """
    from dpsynth_assets.methods.planning import plan_dataset, price_undeclared

    spec = find_cohort(cohort, to_spend=True)
    if prompts:
        show_prompts(spec, as_json=as_json)
        return
    planned = plan_dataset(spec)
    facts = _facts(planned, spec.budget.rounds) | _promises(spec, planned)
    facts |= _with_minutes(spec, planned, facts["releases"])
    facts["memory"] = _memory(spec, planned)
    others = price_undeclared(spec, planned) if everything else ()
    facts["undeclared"] = [_row(entry) for entry in others]
    refused = facts["refusals"] or any(row["refusal"] for row in facts["releases"])
    answer(facts, as_json, lambda: _print(facts), code=2 if refused else 0)


def _with_minutes(spec: Any, planned: Any, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Adds each release's minutes on this machine to its row; those of the whole run are new."""
    from dpsynth_assets.advice.minutes import TRIAL, expected_minutes

    with Console(stderr=True).status(TRIAL):
        expected = expected_minutes(spec, planned)
    for row in rows:
        folder, _, stage = str(row["release"]).partition("/")
        row["minutes"] = expected.releases.get(stage if folder == "shared" else folder)
    return {"minutes": expected.whole, "minutes_unknown": expected.unknown}


def _memory(spec: Any, planned: Any) -> dict[str, dict[str, Any]]:
    """Folders -> what a pass of private prediction takes in memory, where transformers decodes."""
    from dpsynth_assets.datasets.standing import declared_base

    base = declared_base(spec.public_data)
    draws = [each for each in planned.methods if each.method.pass_shape is not None]
    if base is None or base.language_model.decodes_by != DEFAULT_DECODER or not draws:
        return {}
    from dpsynth_assets.attacks.circumstances import files_behind
    from dpsynth_assets.methods.private_prediction.preconditions import memory_of_passes
    from dpsynth_assets.models.language_model import LanguageModelError
    from dpsynth_assets.models.prompt_templates import prompted
    from dpsynth_assets.public_base.making import OpenedModels, language_model_manifest

    manifest = language_model_manifest(base)
    if not files_behind(manifest):
        return {}
    device = _device_here(manifest["device"])
    try:
        opened = OpenedModels().language_model(
            {**manifest, "device": "cpu"}
        )  # No weights are read.
    except LanguageModelError:
        return {}
    model = prompted(opened, planned.terms.prompts)
    return {each.folder: memory_of_passes(each.method, model, device) for each in draws}


def _device_here(declared: str) -> str | None:
    """The device that a declaration means on this machine; None where it has none such."""
    import torch

    if torch.cuda.is_available():
        return "cuda" if declared == "auto" else declared
    return None if declared.startswith("cuda") else "cpu"


def _promises(spec: Any, planned: Any) -> dict[str, Any]:
    """What the plan promises to secrets, and which promises it would break: those are refused."""
    from dpsynth_assets.methods.promised_secrets import (
        budget_warnings,
        kept_promises,
        promise_problems,
    )

    broken = [replace(problem, file=spec.name) for problem in promise_problems(spec, planned)]
    above = [replace(problem, file=spec.name) for problem in budget_warnings(spec, planned)]
    if planned.total_epsilon > planned.budget.epsilon:  # Not even one round is admitted.
        broken, above = [*broken, *(replace(each, severity="error") for each in above)], []
    return {
        "secrets": [asdict(promise) for promise in kept_promises(spec, planned)],
        "refusals": [str(problem) for problem in broken],
        "warnings": [str(problem) for problem in above],
    }


def _facts(planned: Any, rounds: int) -> dict[str, Any]:
    return {
        "cohort": planned.terms.cohort,
        "budget_epsilon": planned.budget.epsilon,
        "delta": planned.budget.delta,
        "accountant": planned.budget.accountant,
        "neighboring_relation": str(planned.budget.relation),
        "privacy_unit": planned.budget.unit.describe(),
        "rounds": rounds,
        "total_epsilon": planned.total_epsilon,
        "releases": [_row(part) for part in planned.parts],
    }


def _row(entry: Any) -> dict[str, Any]:
    stages, tail = ", ".join(entry.plan.charges), entry.plan.tail
    declares = entry.target_epsilon is None  # Its noise, and so its ε.
    return {
        "release": f"{entry.folder}/{stages or 'candidate_corpus'}",
        "method": entry.method.name,
        "guarantee": str(entry.plan.guarantee),
        "budget_share": entry.share,
        "target_epsilon": entry.epsilon if declares else entry.target_epsilon,
        "epsilon": entry.epsilon if entry.folder == "shared" else entry.plan.epsilon,
        "noise": _noise(entry),
        "tokens_per_batch": entry.plan.tokens_per_batch,
        "rows_estimate": entry.plan.rows_estimate,
        "refusal": entry.plan.refusal,
        "tail": None if tail is None else {**asdict(tail), "described": tail.describe()},
    }


def _noise(entry: Any) -> str:
    parameters = entry.plan.parameters
    if entry.folder == "shared":
        noise = entry.plan.stages[0].mechanism.histogram
        scale = f"{rounded_down(noise.scale, '.3g')} records"
        if entry.target_epsilon is None:
            return f"discrete Gaussian of standard deviation {scale}"
        return f"two histograms, discrete {noise.noise.capitalize()} of scale {scale}"
    if "eta" not in parameters:
        return str(parameters.get("noise", ""))
    eta = f"softmax sampling, η = {rounded_up(parameters['eta'], '.3g')}"
    if "break_even_private_fraction" not in parameters:
        return f"{eta} a token"
    return (
        f"{eta}, and a test of ε = {rounded_up(parameters['svt_epsilon'], '.3g')}, per private "
        "token; the test saves budget if fewer than "
        f"{parameters['break_even_private_fraction']:.0%} of the tokens are private"
    )


def _print(facts: dict[str, Any]) -> None:
    from dpsynth_assets.advice.minutes import whole_in_words

    title = f"Plan of cohort {facts['cohort']} (nothing private was read)"
    _print_releases(title, facts["releases"], with_share=True)
    say(
        f"One round of every DP release: ε = {epsilon_up(facts['total_epsilon'])} of "
        f"{declared(facts['budget_epsilon'])} (rounds: {facts['rounds']}) at δ = "
        f"{declared(facts['delta'])} "
        f"({facts['accountant']}), {facts['neighboring_relation']}, unit: {facts['privacy_unit']}.",
        whole_in_words(facts["minutes"], facts["minutes_unknown"]),
        *(
            f"Secrets: prior {declared(promise['prior'])}, posterior "
            f"{epsilon_up(promise['reached'])} after all rounds (promised: at most "
            f"{declared(promise['promised'])})."
            for promise in facts["secrets"]
        ),
    )
    say(*(_in_memory(folder, taken) for folder, taken in facts["memory"].items()))
    say(*facts["warnings"], style="yellow")
    say(*facts["refusals"], style="red")
    if facts["undeclared"]:
        title = "Methods that the file does not name, each as if it were the only one"
        _print_releases(title, facts["undeclared"], with_share=False)
    else:  # What they would cost is for those who ask.
        say(
            f"Other methods: dpsynth plan {facts['cohort']} --all shows their cost, dpsynth advise "
            f"{facts['cohort']} what to expect of each."
        )


def _in_memory(folder: str, taken: Mapping[str, Any]) -> str:
    """Says in a line what a pass takes, and what of it fits on this machine."""
    count = "" if taken["passes"] is None else f"{taken['passes']} passes, each "
    told = (
        f"{folder}: {count}up to {taken['rows']} contexts of {taken['tokens']} tokens, "
        f"{_gib(taken['cache_bytes'])} for keys and values, {_gib(taken['peak_bytes'])} in total"
    )
    if taken["room_bytes"] is None:
        return f"{told}; this machine has no such device, so what fits there is not known."
    told += f"; memory left on this machine beside the weights: {_gib(taken['room_bytes'])}"
    if taken["rows_that_fit"] == taken["rows"]:
        return f"{told}."
    return f"{told}, {taken['rows_that_fit']} contexts: a run here would be refused."


def _gib(count: int) -> str:
    return f"{count / 2**30:.3g} GiB"


_COLUMNS = {
    "release": lambda row: _name(row),
    "guarantee": lambda row: row["guarantee"],
    "share": lambda row: _or_dash(row["budget_share"], "{:.2g}".format),
    "ε alone": lambda row: _or_dash(row["epsilon"], epsilon_up),
    "tokens per batch": lambda row: str(row["tokens_per_batch"] or "—"),
    "rows": lambda row: _rows(row["release"], row["rows_estimate"]),
    "tail": lambda row: _or_dash(row.get("tail"), itemgetter("described")),
    "minutes": lambda row: _or_dash(row.get("minutes"), "{:.1f}".format),
}


def _print_releases(title: str, rows: list[dict[str, Any]], *, with_share: bool) -> None:
    """Prints a table of what can run, then a line on the noise of each, or on why it is refused."""
    planned = [row for row in rows if row["refusal"] is None]
    left_out = () if with_share else ("share", "minutes")
    columns = {name: cell for name, cell in _COLUMNS.items() if name not in left_out}
    if planned:
        show_table(planned, columns, title=title, wraps=[*columns][1:])
    else:
        say(f"{title}: none can run.")
    for noise in dict.fromkeys(row["noise"] for row in planned if row["noise"]):
        names = ", ".join(_name(row) for row in planned if row["noise"] == noise)
        say(f"{names}: {noise}.")
    if any(row.get("tail") for row in planned):
        say(
            "Tail: share of private draws that fall on tokens which no context proposes. Without a "
            "number, the size of the model's vocabulary is not known here."
        )
    refused = (row for row in rows if row["refusal"] is not None)
    say(*(f"{_name(row)} refused: {row['refusal']}" for row in refused), style="red")


def _name(row: dict[str, Any]) -> str:
    """The method's folder; of what all methods share, the release itself."""
    folder, _, stages = str(row["release"]).partition("/")
    return stages if folder == "shared" else folder


def _or_dash(value: Any, written: Callable[[Any], str]) -> str:
    return "—" if value is None else written(value)


def _rows(release: str, estimate: int | None) -> str:
    if release.startswith("shared/"):
        return "—"
    return "by histogram" if estimate is None else f"{estimate} or more"


PRIVATE_TEXT = "<a record>"
"""Stands where a private text does."""


def show_prompts(spec: PrivateDatasetSpec, *, as_json: bool) -> None:
    """Prints the prompts of every label, with and without a private text.

    **Privacy** Declarations alone: no record is read, and no model is opened.
    """
    from dpsynth_assets.methods.dataset_plan import cohort_terms

    terms = cohort_terms(spec)
    own = terms.prompts
    if own is None:
        typer.echo(
            f"Prompts of {spec.name} are the model's document format: the label on a line, then "
            "the text. Say in the public base's domain what the texts are."
        )
        return
    rows = [_of_label(own, *each) for each in zip(terms.labels, terms.label_texts, strict=True)]
    answer(rows, as_json, lambda: _print_prompts(rows))


def _print_prompts(rows: list[Mapping[str, str]]) -> None:
    for row in rows:
        say(row["label"] or "(no labels)", style="bold")
        for name in ("instruction", "public_prompt", "private_prompt"):
            if row[name]:
                say(f"{name.replace('_', ' ')}:", style="dim")
                say(row[name] + "\n")
    say(
        "An instruction is the user's turn of the model's chat template, and the prompt begins the "
        "answer; a model without a template reads the prompt alone."
    )


def _of_label(own: "PromptTemplates", label: str, text: str) -> Mapping[str, str]:
    from dpsynth_assets.models.prompt_templates import GAP

    private = own.private_text(text, 1).replace(GAP, PRIVATE_TEXT) if own.private else ""
    return {
        "label": label,
        "instruction": own.asked(text),
        "public_prompt": own.public_frame(text),
        "private_prompt": private and private + own.opening(text),
    }
