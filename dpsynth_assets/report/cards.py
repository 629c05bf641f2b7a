"""Texts that leave with the data: dataset cards and privacy statements, in Markdown.

Both are functions of a privacy label, so that a card can be rendered anew and compared.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from dpsynth_assets.privacy.directed_rounding import declared, rounded_down, rounded_up
from dpsynth_assets.report.label_texts import is_not_run, is_recall


def dataset_card(label: Mapping[str, Any], *, columns: Sequence[str], rows: int) -> str:
    """A dataset card with front matter that Hugging Face `datasets` reads.

    Args:
        label: Privacy label of the corpus (`report.label.corpus_label`).
        columns: Columns of the Parquet file.
        rows: Rows of the Parquet file (released, so public).
    """
    title = f"{label['subject']['dataset']}: synthetic corpus by {label['method']['title']}"
    front = [
        "---",
        f"pretty_name: {json.dumps(title)}",
        f"tags: [synthetic, {_tag(label)}]",
        "task_categories: [text-generation, text-classification]",
        f"size_categories: [{_size_category(rows)}]",
        "configs:",
        "- config_name: default",
        "  data_files: data/*.parquet",
        "---",
    ]
    paper = f" ({label['method']['paper']})" if label["method"]["paper"] else ""
    return "\n".join(
        [
            *front,
            "",
            f"# {title}",
            "",
            "## What is guaranteed",
            "",
            *_guarantee_lines(label),
            f"- Method: {label['method']['title']}{paper}.",
            f"- The whole cohort when this was published: {cohort_line(label['cohort'])}",
            "",
            *_label_sections(label, depth="###"),
            *_content(columns, rows),
            "",
        ]
    )


def privacy_statement(label: Mapping[str, Any], facts: Mapping[str, Any]) -> str:
    """A cohort's statement: what was released, how, under which guarantee, and what was not summed.

    Args:
        label: Privacy label of the cohort (`report.label.cohort_label`).
        facts: `releases` (one mapping a charge) and `ledger_ok`, from the audit stage.
    """
    verified = "verified" if facts["ledger_ok"] else "NOT VALID"
    return "\n".join(
        [
            f"# Privacy statement of cohort {label['subject']['cohort']}",
            "",
            *_guarantee_lines(label),
            f"- The whole cohort: {cohort_line(label['cohort'])}",
            f"- Ledger: {label['cohort']['as_of_entry']} entries, chain {verified}, "
            f"{_head(label['cohort'])}.",
            "",
            "## Releases",
            "",
            "| when (UTC) | release | mechanism | guarantee | ε alone | state |",
            "|---|---|---|---|---|---|",
            *(_release_row(release) for release in facts["releases"]),
            "",
            *_label_sections(label, depth="##"),
        ]
    )


def cohort_line(cohort: Mapping[str, Any]) -> str:
    """States what holds for the cohort's DP releases, what was spent, what makes a DP total void.

    Args:
        cohort: The section of that name of a label; of schema 1, it knows only what was spent.
    """
    spent = f"ε = {rounded_up(cohort['epsilon'], '.4g')} of {declared(cohort['budget_epsilon'])}"
    delta = f"at δ = {rounded_up(cohort['delta'])} over its DP releases"
    total = f"{spent} {delta}."
    if "epsilon_guaranteed" in cohort:
        total = (
            f"guaranteed ({cohort['basis']}): ε = "
            f"{rounded_up(cohort['epsilon_guaranteed'], '.4g')} {delta}; "
            f"spent so far (odometer reading, a diagnostic): {spent}."
        )
    if cohort.get("restated"):
        total = f"{total} What was spent is {cohort['restated']}."
    if cohort["guarantee"] == "dp":
        return total
    return (
        f"{total} It also made releases of another kind, which no DP total covers: as a whole it "
        f"has {cohort['guarantee']}."
    )


def _tag(label: Mapping[str, Any]) -> str:
    """Lists tags that a search finds: secret protection is no differential privacy."""
    secret = label["guarantee"]["type"] == "secret"
    return "secret-protection" if secret else "differential-privacy"


def _size_category(rows: int) -> str:
    for bound, name in ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K")):
        if rows < bound:
            return name
    return "100K<n<1M"


def _guarantee_lines(label: Mapping[str, Any]) -> list[str]:
    guarantee = label["guarantee"]
    lines = [f"- Guarantee: {guarantee['definition']}."]
    if "epsilon" in guarantee:
        lines += _epsilon_lines(label)
    if "posterior" in guarantee:
        lines += _secret_lines(guarantee, label.get("detectors", ()))
    return [
        *lines,
        *_curve_lines(guarantee.get("spent", guarantee)),
        f"- Privacy unit: {label['privacy_unit']}.",
        f"- Neighbouring relation: {label['neighboring_relation']}: "
        f"{label['neighboring_relation_definition']}.",
        f"- Random numbers: {label['random_numbers']}.",
    ]


def _epsilon_lines(label: Mapping[str, Any]) -> list[str]:
    """ε and δ with what they rest on; for a cohort, what was spent beside what is guaranteed."""
    guarantee = label["guarantee"]
    whole = label["subject"]["kind"] == "cohort"
    covered = "everything charged to the cohort" if whole else "this release and those it builds on"
    lines = [
        f"- ε = {rounded_up(guarantee['epsilon'], '.4g')} at δ = {rounded_up(guarantee['delta'])} "
        f"for {covered} ({guarantee['accountant']} accounting)."
    ]
    if "basis" in guarantee:
        lines.append(f"- Basis of this ε: {guarantee['basis']}.")
    if "delta_is_doubled" in guarantee:
        lines.append(f"- This δ is {guarantee['delta_is_doubled']}.")
    if "spent" in guarantee:
        spent = guarantee["spent"]
        lines.append(
            f"- Spent so far: ε = {rounded_up(spent['epsilon'], '.4g')} of "
            f"{declared(guarantee['budget_epsilon'])}, {spent['is']}."
        )
    return lines


def _curve_lines(curve: Mapping[str, Any]) -> list[str]:
    """(ε, δ) at other points, and μ."""
    lines = []
    if "privacy_profile" in curve:
        points = ", ".join(
            f"({declared(point['epsilon'])}, {rounded_up(point['delta'], '.1e')})"
            for point in curve["privacy_profile"]
            if point["delta"] < 1
        )
        which = "What was spent" if "is" in curve else "The same"
        lines.append(f"- {which}, as (ε, δ) along the privacy profile: {points}.")
    if "gaussian_dp_mu" in curve:
        mu = rounded_up(curve["gaussian_dp_mu"], ".4g")
        lines.append(f"- As Gaussian DP: μ = {mu}.")
    return lines


_ADJACENCY = {
    "add-remove": "one dataset lacks every record that holds the secret",
    "replace-one": "the records that hold the secret have other content",
}


def _secret_lines(
    guarantee: Mapping[str, Any], detectors: Sequence[Mapping[str, Any]]
) -> list[str]:
    """(p, r) apart from every ε, and beside it what the detectors miss."""
    adjacency = [name for name in [guarantee["secret_adjacency"]] if name in _ADJACENCY]
    kinds = guarantee["kinds"] or [{"kind": "all", "promised": None, **guarantee}]
    return [
        f"- DP guarantee: {guarantee['dp_guarantee']}. The (p, r) below is no ε, and no ε follows "
        "from it.",
        *(_bound_line(kind, guarantee["occurrences"]) for kind in kinds),
        *([f"- Neighbours of a secret: {_ADJACENCY[name]}." for name in adjacency]),
        *(_recall_line(result) for result in detectors),
    ]


def _bound_line(kind: Mapping[str, Any], occurrences: int) -> str:
    promised = "" if kind["promised"] is None else f" (promised: {declared(kind['promised'])})"
    return (
        f"- Secrets of kind {kind['kind']}: one that is named with probability "
        f"{declared(kind['prior'])} before is named with at most "
        f"{rounded_up(kind['posterior'], '.3g')} after "
        f"everything charged here{promised}, if at most {kind.get('max_records', occurrences)} "
        "records hold it."
    )


def _recall_line(result: Mapping[str, Any]) -> str:
    kind, detector = result["kind"], result["detector"]
    if result["recall"] is None:
        return f"- Detector of {kind} ({detector}): recall not measured. {result['note']}"
    return (
        f"- Detector of {kind} ({detector}): found {result['found']} of {result['planted']} "
        f"planted secrets, recall {rounded_down(result['recall'], '.3f')}, at least "
        f"{rounded_down(result['recall_at_least'], '.3f')} "
        f"with 95% confidence on text like the public one. {result['note']}"
    )


def _label_sections(label: Mapping[str, Any], *, depth: str) -> list[str]:
    composition = label["composition"]
    sections = {
        "Mechanisms": [_mechanism_line(mechanism) for mechanism in label["mechanisms"]],
        "Composition": [
            f"{composition['rule']}.",
            f"{composition['code']}, {composition['library']}; {composition['rounding']}.",
        ],
        "Public facts relied on": label["public_facts"],
        "What the proof assumes": label["assumptions"],
        "Choice of settings": [f"{label['selection']}."],
        "What is not protected": label["not_protected"],
        "What was not summed": label["not_summed"],
        "Audits on this installation": _audit_lines(
            [result for result in label["audits"] if not is_recall(result)]
        ),
    }
    return [
        line
        for title, points in sections.items()
        for line in (f"{depth} {title}", "", *(f"- {point}" for point in points), "")
    ]


def _mechanism_line(mechanism: Mapping[str, Any]) -> str:
    alone = mechanism["epsilon_alone"]
    cost = "" if alone is None else f" (ε = {rounded_up(alone, '.4g')} alone)"
    words = mechanism["in_words"] or f"{mechanism['guarantee']} release"
    parameters = json.dumps(mechanism["parameters"], sort_keys=True)
    return (
        f"`{mechanism['asset']}` ({mechanism['release']}): {mechanism['mechanism']}: {words}{cost}."
        f" Parameters: `{parameters}`"
    )


def _audit_lines(audits: Sequence[Mapping[str, Any]]) -> list[str]:
    if not audits:
        return ["None were run here. `dpsynth audit run` runs them."]
    lines = [_audit_line(audit) for audit in audits]
    return [*lines, "A pass is no proof: an audit can refute a claim, never establish it."]


def _audit_line(audit: Mapping[str, Any]) -> str:
    if is_not_run(audit):
        return f"{audit['name']}: NOT RUN with the settings of this release when this was written."
    return (
        f"{audit['name']}: {'passed' if audit['passed'] else 'FAILED'}, "
        f"claimed {rounded_up(audit['claimed'], '.4g')}, observed at least "
        f"{rounded_down(audit['observed'], '.4g')} "
        f"({audit['kind']})."
    )


def _head(cohort: Mapping[str, Any]) -> str:
    if cohort["ledger_head"] is None:
        return "head withheld, since it seals values computed from private data without noise"
    return f"head `{cohort['ledger_head']}`"


def _content(columns: Sequence[str], rows: int) -> list[str]:
    meanings = {
        "text": "synthetic text",
        "id": "number of the row, unrelated to any private id",
        "method": "generation method",
        "origin": "`demonstration`: drawn from private records; `extra`: written after those",
        "batch": "number of the batch of private contexts that voted on the tokens",
        "cluster": "public cluster of the batch; -1 where batches are not clustered",
        "topic": "public topic whose keywords were asked for; -1 for none",
        "n_tokens": "tokens of the text",
    }
    return [
        "## Content",
        "",
        f"{rows} rows. Nothing below is a private record; `id` counts synthetic rows.",
        "",
        *(f"- `{name}`: {meanings.get(name, 'label that was asked for')}" for name in columns),
    ]


def _release_row(release: Mapping[str, Any]) -> str:
    epsilon = "—" if release["epsilon"] is None else rounded_up(release["epsilon"], ".4g")
    return (
        f"| {release['at']} | {release['asset']} ({release['release']}) | {release['mechanism']} | "
        f"{release['guarantee']} | {epsilon} | {release['state']} |"
    )
