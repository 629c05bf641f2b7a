"""The page of an officer's pack (exports/pack.py), made from its JSON alone."""

from collections.abc import Mapping
from typing import Any

from dpsynth_assets.exports.pack import percent
from dpsynth_assets.privacy.directed_rounding import declared, epsilon_up, rounded_up
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

ASKED = "A person must answer: "


def pack_page(pack: Mapping[str, Any]) -> Report:
    """Writes a pack as Markdown and as one HTML file."""
    title = f"Officer's pack of {pack['facts']['name']}"
    intro, *parts, published = pack["parts"]
    blocks = [Heading(title, 1), *_section(intro), _summary(pack), *_statement(pack["facts"])]
    for part in parts:
        blocks += [Heading(part["question"], 2), *_section(part)]
        for item in part["items"]:
            blocks += [Heading(item["question"], 3), *_section(item)]
            if item["question"].startswith("Inference: "):
                blocks += _posteriors(pack["facts"])
    blocks += [Heading(published["question"], 2), *_section(published), *_published(pack)]
    return Report(markdown=to_markdown(blocks), html=to_html(title, blocks))


def _section(told: Mapping[str, Any]) -> list[Block]:
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
