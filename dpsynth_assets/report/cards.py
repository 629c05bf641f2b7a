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
        cohort: The section of that name of a label.
    """
    spent = f"ε = {epsilon_up(cohort['epsilon'])} of {declared(cohort['budget_epsilon'])}"
    delta = f"at δ = {rounded_up(cohort['delta'])} over its DP releases"
    total = (
        f"guaranteed ({cohort['basis']}): ε = {epsilon_up(cohort['epsilon_guaranteed'])} {delta}; "
        f"spent so far (odometer reading, a diagnostic): {spent}."
    )
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


_DP_PART = "epsilon_of_its_dp_releases_alone"
"""ε of a label whose subject as a whole has none."""


def guarantee_lines(label: Mapping[str, Any]) -> list[str]:
    """The guarantee of a privacy label, with its unit, neighbours and source of randomness."""
    guarantee = label["guarantee"]
    lines = [f"- Guarantee: {guarantee['definition']}."]
    if "epsilon" in guarantee:
        lines += _epsilon_lines(label)
    if _DP_PART in guarantee:
        lines += _dp_part_lines(guarantee)
    if "posterior" in guarantee:
        lines += _secret_lines(guarantee, label.get("detectors", ()))
    return [
        *lines,
        *_curve_lines(guarantee.get("spent", guarantee), of_dp_part=_DP_PART in guarantee),
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
        f"- ε = {epsilon_up(guarantee['epsilon'])} at δ = {rounded_up(guarantee['delta'])} "
        f"for {covered} ({guarantee['accountant']} accounting)."
    ]
    if "basis" in guarantee:
        lines.append(f"- Basis of this ε: {guarantee['basis']}.")
    if "delta_is_doubled" in guarantee:
        lines.append(f"- This δ is {guarantee['delta_is_doubled']}.")
    if "spent" in guarantee:
        spent = guarantee["spent"]
        lines.append(
            f"- Spent so far: ε = {epsilon_up(spent['epsilon'])} of "
            f"{declared(guarantee['budget_epsilon'])}, {spent['is']}."
        )
    return lines


def _dp_part_lines(guarantee: Mapping[str, Any]) -> list[str]:
    """What holds for the DP releases of a cohort that as a whole has no (ε, δ)."""
    lines = [
        f"- Its (ε, δ)-DP releases seen alone, without the others: ε = "
        f"{epsilon_up(guarantee[_DP_PART])} at δ = {rounded_up(guarantee['delta'])} "
        f"({guarantee['accountant']} accounting). This is no guarantee of the whole cohort: it "
        "says nothing about who also sees a release of another kind."
    ]
    if "spent" in guarantee:
        spent = guarantee["spent"]
        lines.append(
            f"- Spent on them so far: ε = {epsilon_up(spent['epsilon'])} of "
            f"{declared(guarantee['budget_epsilon'])}, {spent['is']}."
        )
    return lines


def _curve_lines(curve: Mapping[str, Any], *, of_dp_part: bool) -> list[str]:
    """(ε, δ) at other points, and μ; of some releases of a cohort only, where it is said so."""
    lines = []
    of_whom = " of its DP releases alone" if of_dp_part else ""
    if "privacy_profile" in curve:
        points = ", ".join(
            f"({declared(point['epsilon'])}, {rounded_up(point['delta'], '.1e')})"
            for point in curve["privacy_profile"]
            if point["delta"] < 1
        )
        which = "What was spent" if "is" in curve else "The same"
        lines.append(f"- {which}{of_whom}, as (ε, δ) along the privacy profile: {points}.")
    if "gaussian_dp_mu" in curve:
        mu = rounded_up(curve["gaussian_dp_mu"], ".4g")
        lines.append(f"- As Gaussian DP{of_whom}: μ = {mu}.")
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
    """The promise first: what was reached so far is read off the ledger, and later charges add."""
    promised, reached = kind["promised"], rounded_up(kind["posterior"], ".3g")
    bound = f"{reached} after what was charged here so far"
    if promised is not None and kind["posterior"] <= promised:
        bound = f"{declared(promised)} after all that may ever be charged ({bound})"
    return (
        f"- Secrets of kind {kind['kind']}: one that is named with probability "
        f"{declared(kind['prior'])} before is named with at most {bound}, if at most "
        f"{kind.get('max_records', occurrences)} records hold it."
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
