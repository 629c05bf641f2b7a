"""The officer's pack: questions of a privacy officer about a cohort, answered from the ledger.

The words stand in `pack.txt.j2`, the values of other deployments in `deployments.yaml`. What
neither ledger, label, dataset file nor settings say is printed as a question to a person.

**Privacy** Reads the ledger, the published label, the dataset file and settings; no record.
"""

import json
import math
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import yaml

from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.files.whole import write_whole
from dpsynth_assets.methods.registry import REGISTRY
from dpsynth_assets.paths import SENSITIVE_VARIABLE, home
from dpsynth_assets.privacy.directed_rounding import declared, epsilon_down, epsilon_up, rounded_up
from dpsynth_assets.privacy.guarantees import NeighboringRelation
from dpsynth_assets.privacy.ledger import Ledger, LedgerEntry
from dpsynth_assets.privacy.ledger.schema import APPROVAL, PURGE, RECOVERY, RESERVE, asked_for
from dpsynth_assets.privacy.secret_protection import posterior_of_dp
from dpsynth_assets.report.cards import (
    LABEL_FILE,
    STATEMENT_FILE,
    privacy_statement,
    released_folder,
    releases,
)
from dpsynth_assets.report.label import Label, cohort_label
from dpsynth_assets.report.label_texts import is_recall
from dpsynth_assets.report.pages import (
    Block,
    Facts,
    Gap,
    Heading,
    Notice,
    Paragraph,
    Tile,
    Tiles,
    table_of,
    to_html,
    to_markdown,
)
from dpsynth_assets.report.render import Report
from dpsynth_assets.sensitive.purging import purges_after_success
from dpsynth_assets.sensitive.sealing import sealing_key

SCHEMA = "dpsynth/officer-pack/1"
FOLDER, HTML = PAGE = "officer_pack", "officer_pack.html"
MARKDOWN, JSON = "officer_pack.md", "officer_pack.json"
FILES = HTML, MARKDOWN, JSON
PRIORS = 0.01, 0.1, 0.5
GUIDE = "after NIST SP 800-226"
_HERE = Path(__file__).parent
_PLANTS = re.compile("/|^canaries-in-")
"""Names of attacks on releases, beside audits of one mechanism."""
_DEEDS = {
    RESERVE: "Asked for a charge",
    APPROVAL: "Approved a plan",
    RECOVERY: "Restored the ledger, or continued without lost entries",
    PURGE: "Removed private files",
}
"""What people do, by the kind of entry that says who did it."""
_DECLARED = {
    *("description", "owners", "privacy_unit", "public_facts", "budget", "schedule", "parts"),
    *("shares_records_with", "public_data"),
}
"""What the dataset file says that an answer repeats."""
_MARKS = {"!": "warnings", "@": "behind", "?": "open"}
"""Kinds of lines in the template; all others are paragraphs of an answer."""


def write_pack(spec: PrivateDatasetSpec, ledger: Ledger) -> Path:
    """Writes statement, answers as page and as Markdown, and the JSON they were made from.

    Args:
        spec: The cohort.
        ledger: Where its charges are.

    Returns:
        The folder, among the cohort's reports.

    Raises:
        PrivacyError: Nothing was charged to the cohort.
    """
    pack = pack_of(spec, ledger)
    page, target = pack_page(pack), home().reports / spec.name / FOLDER
    for name, text in (
        (STATEMENT_FILE, statement_in(pack)),
        (JSON, json.dumps(pack, indent=2, ensure_ascii=False, allow_nan=False)),
        (MARKDOWN, page.markdown),
        (HTML, page.html),
    ):
        write_whole(target / name, text)
    return target


def pack_of(spec: PrivateDatasetSpec, ledger: Ledger) -> dict[str, Any]:
    """All that a pack says, as JSON values: `facts`, `parts` of answers, `deployments`.

    Raises:
        PrivacyError: Nothing was charged to the cohort.
    """
    facts = _facts(spec, ledger)
    values = _published_values(facts)
    said = _words().render(f=facts, values=values, guide=GUIDE)
    return {
        "schema": SCHEMA,
        "guide": GUIDE,
        "facts": facts,
        "parts": _answered(said),
        "published_values": values,
    }


def statement_in(pack: Mapping[str, Any]) -> str:
    """The privacy statement that a pack is about, as it may be published."""
    facts = pack["facts"]
    told = {"releases": facts["charges"], "ledger_ok": facts["ledger_ok"]}
    return privacy_statement(facts["label"], told)


def _facts(spec: PrivateDatasetSpec, ledger: Ledger) -> dict[str, Any]:
    entries = ledger.entries()
    published = released_folder(spec.name, "") / LABEL_FILE
    audits = json.loads(published.read_text())["audits"] if published.exists() else []
    label = cohort_label(entries, spec.account, audits)
    told = releases(entries, label)
    paid = [e for e in entries if e.kind == RESERVE and e.cohort == spec.account]
    recalls = [result["name"] for result in label["audits"] if is_recall(result)]
    tests = [result for result in label["audits"] if result["name"] not in recalls]
    asked: dict[str, list[int]] = {}
    for entry in paid:
        rule = asked_for(entry.terms.approvals if entry.terms else None)
        asked.setdefault(rule, []).append(entry.seq)
    return {
        "name": spec.name,
        "cohort": spec.account,
        "ledger_ok": ledger.verify().ok,
        "label": label,
        "published": published.exists(),
        **_bounds(label),
        "charges": [
            {
                "entry": entry.seq,
                "title": getattr(REGISTRY.get(entry.mechanism), "title", entry.mechanism),
                "in_words": mechanism["in_words"],
                **line,
            }
            for entry, mechanism, line in zip(paid, label["mechanisms"], told, strict=True)
        ],
        "versions": sorted({entry.data_version for entry in paid}),
        "recoveries": [entry.seq for entry in entries if entry.kind == RECOVERY],
        "deeds": list(_deeds(entries, {spec.account, spec.name, ""})),
        "approvals": {"declared": asked_for(spec.approval_terms), "charged": asked},
        "dataset": _dataset(ledger, spec.dataset),
        "recalls": recalls,
        "audits": [result for result in tests if not _PLANTS.search(result["name"])],
        "attacks": [result for result in tests if _PLANTS.search(result["name"])],
        "declared": spec.model_dump(mode="json", include=_DECLARED),
        "canaries": spec.evaluation.canaries is not None,
        "installation": {
            "encrypted": sealing_key() is not None,
            "in_bucket": bool(os.environ.get(SENSITIVE_VARIABLE, "").strip()),
            "purged": purges_after_success(),
        },
        "year": int(paid[-1].recorded_at[:4]),
    }


def _bounds(label: Label) -> dict[str, Any]:
    """ε and δ of the whole cohort with what follows from them; ε is None where it has none."""
    epsilon, delta = label["guarantee"].get("epsilon"), label["cohort"]["delta"]
    if epsilon is None:
        return {"epsilon": None, "delta": delta, "posteriors": []}
    # Two contents of a unit are neighbours, or each is one of the data without that unit.
    replaced = label["neighboring_relation"] == NeighboringRelation.REPLACE_ONE
    named = partial(
        posterior_of_dp, epsilon, delta, adjacency="pairwise" if replaced else "reference"
    )
    return {
        "epsilon": epsilon,
        "delta": delta,
        "factor": math.exp(min(epsilon, 700.0)),
        "posteriors": [{"before": prior, "after": named(prior)} for prior in PRIORS],
    }


def _deeds(entries: Sequence[LedgerEntry], cohorts: Collection[str]) -> Iterator[dict[str, Any]]:
    """Who did what, by which entries; a deed of no cohort concerns all."""
    found: dict[tuple[str, str], list[int]] = {}
    for entry in entries:
        if entry.kind in _DEEDS and entry.cohort in cohorts:
            found.setdefault((_DEEDS[entry.kind], entry.acted_by), []).append(entry.seq)
    for (deed, actor), seqs in found.items():
        yield {"deed": deed, "by": actor, "entries": seqs}


def _dataset(ledger: Ledger, name: str) -> dict[str, Any]:
    spend = ledger.dataset_spend(name)
    return {
        "name": name,
        "epsilon": spend.guaranteed_epsilon,
        "delta": spend.delta,
        "composition": spend.composition,
        "guarantee": spend.total_guarantee,
        "cohorts": [cohort.cohort for cohort in spend.cohorts],
    }


def _answered(said: str) -> list[dict[str, Any]]:
    """Parts of what the template says, with their questions; the first part has no title."""
    parts = [_section("") | {"items": []}]
    section = parts[0]
    for line in filter(None, map(str.strip, said.splitlines())):
        mark, _, told = line.partition(" ")
        if mark == "##":
            section = _section(told) | {"items": []}
            parts.append(section)
        elif mark == "###":
            section = _section(told)
            parts[-1]["items"].append(section)
        elif mark in _MARKS:
            section[_MARKS[mark]].append(told)
        else:
            section["answer"].append(line)
    return parts


def _section(question: str) -> dict[str, Any]:
    return {"question": question, **{kind: [] for kind in ("warnings", "answer", "behind", "open")}}


@cache
def _words() -> Any:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    words = Environment(  # noqa: S701 - plain lines; the writer of the page escapes them
        loader=FileSystemLoader(_HERE), undefined=StrictUndefined, trim_blocks=True
    )
    words.filters["upper_first"] = lambda text: f"{text[:1].upper()}{text[1:]}"
    words.globals |= {
        "epsilon_up": epsilon_up,
        "epsilon_down": epsilon_down,
        "up": rounded_up,
        "declared": declared,
        "percent": percent,
        "one_in": lambda share: f"1 in {math.floor(1.0 / share):,}",
        "times": lambda factor: f"{math.ceil(factor):,}",
        "ranges": ranges,
    }
    return words.get_template("pack.txt.j2")


def percent(share: float) -> str:
    """A probability that is told rounded up: 96.79 %."""
    return f"{rounded_up(100.0 * share, '.2f')} %"


def ranges(numbers: Iterable[int]) -> str:
    """Numbers of entries, those that follow one another as a range: `entries 1 to 4, 7`."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    told = (f"{run[0]} to {run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)
    return f"{'entry' if sum(map(len, runs)) == 1 else 'entries'} {', '.join(told)}"


def _published_values(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The published deployments and this cohort among them, by ε; those without one are last."""
    known = yaml.safe_load((_HERE / "deployments.yaml").read_text(encoding="utf-8"))
    mine = {
        "deployment": f"This cohort: {facts['cohort']}",
        "year": facts["year"],
        "variant": "approximate" if facts["epsilon"] is not None else "no (ε, δ)",
        "epsilon": facts["epsilon"],
        "delta": facts["delta"] if facts["epsilon"] is not None else None,
        "unit": facts["label"]["privacy_unit"],
        "model": "central",
    }
    rows = [mine, *({"delta": None, "epsilon": None, **row} for row in known["deployments"])]
    rows.sort(key=lambda row: math.inf if row["epsilon"] is None else row["epsilon"])
    others = [row["epsilon"] for row in rows if row["epsilon"] is not None and row is not mine]
    return {
        "source": known["source"],
        "own": mine["deployment"],
        "rows": rows,
        "smaller": sum(each < (mine["epsilon"] or 0.0) for each in others),
        "others": len(others),
    }


# The page of a pack, made from its JSON alone.

ASKED = "A person must answer: "


def pack_page(pack: Mapping[str, Any]) -> Report:
    """Writes a pack as Markdown and as one HTML file."""
    title = f"Officer's pack of {pack['facts']['name']}"
    intro, *parts, published = pack["parts"]
    blocks = [Heading(title, 1), *_told(intro), _summary(pack), *_statement(pack["facts"])]
    for part in parts:
        blocks += [Heading(part["question"], 2), *_told(part)]
        for item in part["items"]:
            blocks += [Heading(item["question"], 3), *_told(item)]
            if item["question"].startswith("Inference: "):
                blocks += _posteriors(pack["facts"])
    blocks += [Heading(published["question"], 2), *_told(published), *_published(pack)]
    return Report(markdown=to_markdown(blocks), html=to_html(title, blocks))


def _told(told: Mapping[str, Any]) -> list[Block]:
    """What the template says below a heading; the names of sources end at the first colon."""
    behind = [each.partition(": ") for each in told["behind"]]
    return [
        *map(Notice, told["warnings"]),
        *map(Paragraph, told["answer"]),
        *(Gap(f"{ASKED}{each}") for each in told["open"]),
        *([Facts(tuple((name, what) for name, _, what in behind))] if behind else []),
    ]


def _summary(pack: Mapping[str, Any]) -> Tiles:
    facts = pack["facts"]
    tests = [*facts["audits"], *facts["attacks"]]
    refuted = sum(test["passed"] is False for test in tests)
    left = sum(len(item["open"]) for part in pack["parts"] for item in part["items"])
    return Tiles(
        (
            Tile(
                "ε guaranteed",
                "none" if facts["epsilon"] is None else epsilon_up(facts["epsilon"]),
                f"of everything released together, δ = {rounded_up(facts['delta'])}",
            ),
            Tile("Protects", "one unit", facts["label"]["privacy_unit"]),
            Tile("Charges", str(len(facts["charges"])), "of this cohort in the ledger"),
            Tile("Audits and attacks", str(len(tests)), f"on record; {refuted} refuted a claim"),
            Tile("Left to a person", str(left), "questions, marked on this page"),
        )
    )


def _statement(facts: Mapping[str, Any]) -> list[Block]:
    """What was released; the statement itself is a file of its own, as it may be published."""
    shut = Notice("The ledger does not verify: do not rely on this page.")
    return [
        *([] if facts["ledger_ok"] else [shut]),
        Heading("Privacy statement", 2),
        Paragraph("The statement, with all releases, is `privacy_statement.md` in this folder."),
        Paragraph("Not protected:"),
        *(Paragraph(f"- {each}") for each in facts["label"]["not_protected"]),
    ]


def _posteriors(facts: Mapping[str, Any]) -> list[Block]:
    if not facts["posteriors"]:
        return []
    columns = {
        "each believed before, at most": lambda each: f"{declared(100.0 * each['before'])} %",
        "the right one named afterwards, at most": lambda each: percent(each["after"]),
    }
    caption = f"What all releases reveal about a unit, at ε = {epsilon_up(facts['epsilon'])}"
    return [table_of(facts["posteriors"], columns, caption=caption, numeric=set(columns))]


def _published(pack: Mapping[str, Any]) -> list[Block]:
    """Where ε stands among published values, with what makes them differ."""
    values = pack["published_values"]
    columns = {
        "deployment": lambda each: each["deployment"],
        "ε, δ or ρ": lambda each: _value(each, own=each["deployment"] == values["own"]),
        "unit": lambda each: each["unit"],
        "variant": lambda each: each["variant"],
        "model": lambda each: each["model"],
        "year": lambda each: str(each["year"]),
    }
    return [table_of(values["rows"], columns, caption=f"By ε. Source: {values['source']}")]


def _value(row: Mapping[str, Any], *, own: bool) -> str:
    """What a deployment published, as it did; our own value is rounded up."""
    if row["epsilon"] is None:
        return f"ρ = {declared(row['rho'])}" if "rho" in row else "none"
    delta = "" if row["delta"] is None else f", δ = {rounded_up(row['delta'])}"
    return f"ε = {epsilon_up(row['epsilon']) if own else declared(row['epsilon'])}{delta}"
