"""Texts that leave with the data: dataset cards and privacy statements, in Markdown.

Both are functions of a privacy label, so that a card can be rendered anew and compared.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dpsynth_assets.datasets.fields import OWN_COLUMNS
from dpsynth_assets.files.tables import markdown_table
from dpsynth_assets.privacy.directed_rounding import declared, epsilon_up, rounded_down, rounded_up
from dpsynth_assets.report.guarantee_lines import guarantee_lines
from dpsynth_assets.report.label_texts import is_not_run, is_recall

_PLAIN = re.compile(r"[\w .,:()/+-]+")
"""Values that mean nothing in Markdown."""


def dataset_card(
    label: Mapping[str, Any],
    *,
    columns: Sequence[str],
    rows: int,
    more_front: Sequence[str] = (),
) -> str:
    """A dataset card with front matter that Hugging Face `datasets` reads.

    Args:
        label: Privacy label of the corpus (`report.label.corpus_label`).
        columns: Columns of the Parquet files.
        rows: Rows of the Parquet files (released, so public).
        more_front: Further lines of front matter, such as the licence (`report.hub`).
    """
    title = f"{label['subject']['dataset']}: synthetic corpus by {label['method']['title']}"
    front = [
        "---",
        f"pretty_name: {json.dumps(title)}",
        f"tags: [synthetic, {tag_of(label)}]",
        "task_categories: [text-generation, text-classification]",
        f"size_categories: [{_size_category(rows)}]",
        "configs:",
        "- config_name: default",
        "  data_files: data/*.parquet",
        *more_front,
        "---",
    ]
    return "\n".join(
        [
            *front,
            "",
            f"# {title}",
            "",
            *guarantee_sections(label),
            *_content(columns, rows),
            *_kept_lines(label.get("kept_rows", {})),
            "",
        ]
    )


def guarantee_sections(label: Mapping[str, Any]) -> list[str]:
    """Lines of a card that say what one release guarantees, and what the proof rests on."""
    paper = f" ({label['method']['paper']})" if label["method"]["paper"] else ""
    return [
        "## What is guaranteed",
        "",
        *guarantee_lines(label),
        f"- Method: {label['method']['title']}{paper}.",
        f"- The whole cohort when this was published: {cohort_line(label['cohort'])}",
        "",
        *_label_sections(label, depth="###"),
    ]


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
            *guarantee_lines(label),
            f"- The whole cohort: {cohort_line(label['cohort'])}",
            f"- Ledger: {label['cohort']['as_of_entry']} entries, chain {verified}, "
            f"{_head(label['cohort'])}.",
            "",
            "## Releases",
            "",
            markdown_table(
                ("day (UTC)", "release", "mechanism", "guarantee", "ε alone", "state"),
                map(_release_row, facts["releases"]),
            ),
            "",
            *_label_sections(label, depth="##"),
        ]
    )


def cohort_line(cohort: Mapping[str, Any]) -> str:
    """States what holds for the cohort's DP releases, what was spent, what makes a DP total void.

    Args:
        cohort: The section of that name of a label; of schema 1, it knows only what was spent.
    """
    spent = f"ε = {epsilon_up(cohort['epsilon'])} of {declared(cohort['budget_epsilon'])}"
    delta = f"at δ = {rounded_up(cohort['delta'])} over its DP releases"
    total = f"{spent} {delta}."
    if "epsilon_guaranteed" in cohort:
        total = (
            f"guaranteed ({cohort['basis']}): ε = "
            f"{epsilon_up(cohort['epsilon_guaranteed'])} {delta}; "
            f"spent so far (odometer reading, a diagnostic): {spent}."
        )
    if cohort.get("restated"):
        total = f"{total} What was spent is {cohort['restated']}."
    if cohort["guarantee"] == "dp":
        return total
    return (
        f"(ε, δ)-DP as a whole: {cohort['guarantee']}, since it also made releases of another "
        f"kind, which no DP total covers. Its DP releases seen alone: {total}"
    )


def tag_of(label: Mapping[str, Any]) -> str:
    """Lists tags that a search finds: secret protection is no differential privacy."""
    secret = label["guarantee"]["type"] == "secret"
    return "secret-protection" if secret else "differential-privacy"


def _size_category(rows: int) -> str:
    """The size category of the Hugging Face hub."""
    names = ("n<1K", "1K<n<10K", "10K<n<100K", "100K<n<1M", "1M<n<10M", "10M<n<100M")
    for power, name in enumerate(names, start=3):
        if rows < 10**power:
            return name
    return "100M<n<1B"


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
    cost = "" if alone is None else f" (ε = {epsilon_up(alone)} alone)"
    words = mechanism["in_words"] or f"{mechanism['guarantee']} release"
    return (
        f"`{mechanism['asset']}` ({mechanism['release']}): {mechanism['mechanism']}: {words}{cost}."
        f"\n  - {'; '.join(_in_words(mechanism['parameters']))}"
    )


def _in_words(parameters: Mapping[str, Any], within: str = "") -> Iterator[str]:
    """Writes settings as `name` value, in the order of their names; a group's after a dot."""
    for name, value in sorted(parameters.items()):
        if isinstance(value, Mapping):
            yield from _in_words(value, f"{within}{name}.")
        else:
            yield f"`{within}{name}` {_value(value)}"


def _value(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    if isinstance(value, int | float) or (isinstance(value, str) and _PLAIN.fullmatch(value)):
        return str(value)
    written = json.dumps(value, ensure_ascii=False).replace("`", "'")
    return f"`{written}`"  # A prompt may hold marks of Markdown.


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
        "id": "number of the row, unrelated to any private id",
        "method": "generation method",
        "origin": "`demonstration`: drawn from private records; `extra`: written after those",
        "batch": "number of the batch of private contexts that voted on the tokens",
        "cluster": "public cluster of the batch; -1 where batches are not clustered",
        "topic": "public topic whose keywords were asked for; -1 for none",
        "n_tokens": "tokens of the text",
    }
    own = {f"{OWN_COLUMNS}{name}": meaning for name, meaning in meanings.items()}
    named = {"text": "synthetic text", **own}
    return [
        "## Content",
        "",
        f"{rows} rows. Nothing below is a private record; `{OWN_COLUMNS}id` counts synthetic rows.",
        "",
        *(f"- `{name}`: {named.get(name, 'label that was asked for')}" for name in columns),
    ]


def _kept_lines(kept: Mapping[str, Any]) -> Iterator[str]:
    """Says which of the written rows are in the files; nothing where no rule was asked for."""
    if not kept:
        return
    down = ", ".join(f"{count} {name}" for name, count in kept["turned_down"].items())
    yield from ("", "### Which rows were kept", "")
    if kept.get("rules_fit", True):
        yield (
            f"- {kept['acceptance_rate']:.1%} of {kept['candidates']} written rows were kept"
            + (f"; turned down: {down}." if down else ".")
        )
    else:
        yield f"- All rows were kept, as most of them break a rule ({down})."
    rules = {name: kept[name] for name in sorted(kept) if name not in _COUNTED}
    yield f"- By public rules that read no record: {'; '.join(_in_words(rules))}."


_COUNTED = ("acceptance_rate", "candidates", "turned_down", "rules_fit")


def _release_row(release: Mapping[str, Any]) -> tuple[Any, ...]:
    epsilon = "—" if release["epsilon"] is None else epsilon_up(release["epsilon"])
    name = f"{release['asset']} ({release['release']})"
    at, mechanism, guarantee, state = map(release.get, ("at", "mechanism", "guarantee", "state"))
    return at, name, mechanism, guarantee, epsilon, state
