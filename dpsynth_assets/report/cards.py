"""Texts that leave with the data: dataset cards and privacy statements, in Markdown."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

_GUARANTEES = {
    "dp": "(ε, δ)-differential privacy, for every dataset and every outcome",
    "ex-post": (
        "ex-post, data-dependent only: this corpus has no (ε, δ)-DP guarantee. Its realised bound "
        "is itself computed from private data, is not sanitised, and is therefore withheld"
    ),
}


def what_is_not_protected(guarantee: str, unit: str) -> list[str]:
    """Plain sentences on what a guarantee of this kind leaves open."""
    sentences = [
        f"Facts that hold for many units: the guarantee hides the presence of {unit}, not trends.",
        "The set of labels and everything listed under public facts.",
        "Text that public documents or the public language model already contained.",
        "The outcome of the release gate (canaries, verbatim spans): up to one bit a check.",
    ]
    if guarantee == "ex-post":
        sentences.append("Anything in the worst case: the ex-post bound varies with the data.")
    return sentences


def dataset_card(label: Mapping[str, Any], *, columns: Sequence[str], rows: int) -> str:
    """A dataset card with front matter that Hugging Face `datasets` reads.

    Args:
        label: Privacy label of the corpus.
        columns: Columns of the Parquet file.
        rows: Rows of the Parquet file (released, so public).
    """
    title = f"{label['dataset']}: synthetic corpus by {label['method']}"
    front = [
        "---",
        f"pretty_name: {json.dumps(title)}",
        "tags: [synthetic, differential-privacy]",
        "task_categories: [text-generation, text-classification]",
        f"size_categories: [{_size_category(rows)}]",
        "configs:",
        "- config_name: default",
        "  data_files: data/*.parquet",
        "---",
    ]
    return "\n".join(
        [*front, "", f"# {title}", "", *_guarantee_lines(label), "", *_content(columns, rows), ""]
    )


def _size_category(rows: int) -> str:
    for bound, name in ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K")):
        if rows < bound:
            return name
    return "100K<n<1M"


def _guarantee_lines(label: Mapping[str, Any]) -> list[str]:
    lines = [
        "## What is guaranteed",
        "",
        f"- Guarantee: {_GUARANTEES.get(label['guarantee'], label['guarantee'])}.",
    ]
    if label["epsilon"] is not None:
        lines.append(
            f"- ε = {label['epsilon']:.4g} at δ = {label['delta']:g}, including the releases that "
            f"this corpus builds on ({label['accountant']} accounting)."
        )
    lines += [
        f"- Privacy unit: {label['privacy_unit']}.",
        f"- Neighbouring relation: {label['neighboring_relation']}.",
        f"- Method: {label['method']} ({label['paper']}).",
        f"- The whole cohort so far: {cohort_line(label)}",
        f"- Random numbers: {label['random_numbers']}.",
        "",
        "### Public facts relied on",
        "",
        *(f"- {fact}" for fact in label["public_facts"]),
        "",
        "### What is not protected",
        "",
        *(f"- {sentence}" for sentence in label["not_protected"]),
        "",
        "### Mechanism",
        "",
        "```json",
        json.dumps({"events": label["events"], "parameters": label["parameters"]}, indent=2),
        "```",
    ]
    return lines


def cohort_line(label: Mapping[str, Any]) -> str:
    """One sentence on the cohort's DP total; ex-post releases make it void and say so."""
    total = f"ε = {label['cohort_epsilon']:.4g} of {label['cohort_budget']:g} over its DP releases."
    if label["cohort_guarantee"] == "dp":
        return total
    return (
        f"{total} The cohort also made ex-post releases, which no DP total covers: as a whole it "
        f"has {label['cohort_guarantee']}."
    )


def _content(columns: Sequence[str], rows: int) -> list[str]:
    meanings = {
        "text": "synthetic text",
        "id": "number of the row, unrelated to any private id",
        "method": "generation method",
        "batch": "number of the batch of private contexts that voted on the tokens",
        "cluster": "public cluster of the batch; -1 where batches are not clustered",
        "n_tokens": "tokens of the text",
    }
    return [
        "## Content",
        "",
        f"{rows} rows. Nothing below is a private record; `id` counts synthetic rows.",
        "",
        *(f"- `{name}`: {meanings.get(name, 'label that was asked for')}" for name in columns),
    ]


def privacy_statement(facts: Mapping[str, Any]) -> str:
    """A cohort's statement: what was released, how, under which guarantee, and what was not summed.

    Args:
        facts: Result of the audit stage, all of it read from the ledger and the dataset file.
    """
    return "\n".join(
        [
            f"# Privacy statement of cohort {facts['cohort']}",
            "",
            f"- Privacy unit: {facts['privacy_unit']}; neighbouring relation: "
            f"{facts['neighboring_relation']}.",
            f"- DP releases: ε = {facts['epsilon']:.4g} of {facts['budget']:g} at "
            f"δ = {facts['delta']:g} ({facts['accountant']} accounting, recomputed from events).",
            f"- Guarantee of the cohort as a whole: {facts['cohort_guarantee']}.",
            f"- Ledger: {facts['ledger_entries']} entries, chain "
            f"{'verified' if facts['ledger_ok'] else 'NOT VALID'}, head `{facts['ledger_head']}`.",
            "",
            "## Releases",
            "",
            "| when (UTC) | release | mechanism | guarantee | ε alone | state |",
            "|---|---|---|---|---|---|",
            *(_release_row(release) for release in facts["releases"]),
            "",
            "## Public",
            "",
            *(f"- {fact}" for fact in facts["public_facts"]),
            "",
            "## Not protected",
            "",
            *(f"- {sentence}" for sentence in facts["not_protected"]),
            "",
            "## Not summed",
            "",
            *(f"- {sentence}" for sentence in facts["not_summed"]),
            "",
        ]
    )


def _release_row(release: Mapping[str, Any]) -> str:
    epsilon = "—" if release["epsilon"] is None else f"{release['epsilon']:.4g}"
    return (
        f"| {release['at']} | {release['asset']} ({release['release']}) | {release['mechanism']} | "
        f"{release['guarantee']} | {epsilon} | {release['state']} |"
    )
