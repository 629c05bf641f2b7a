"""Tables and pictures of attacks for the metadata of their assets: all public."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import dagster as dg

from dpsynth_assets.files.tables import markdown_table
from dpsynth_assets.methods.attack_runs import Reconstruction
from dpsynth_assets.privacy.directed_rounding import rounded_down, rounded_up
from dpsynth_assets.report.attack_record import attacks_file

if TYPE_CHECKING:
    from dpsynth_assets.attacks.audits import AuditResult
    from dpsynth_assets.attacks.median_audit import BatchGap
    from dpsynth_assets.attacks.reconstruction import Overlap, Rate


def reconstruction_metadata(found: Sequence[Reconstruction]) -> dict[str, Any]:
    """Overlaps of every method on every model, with what is claimed and proven."""
    from dpsynth_assets.report.plots import reconstruction_plot, to_markdown

    header = (
        "method", "model", "source keys written", "other keys written", "ε proven", "ε claimed",
        "ε proven without privacy", "",
    )  # fmt: skip
    lines = [
        (
            item.method, item.model, _rate(item.overlap.source), _rate(item.overlap.held_out),
            rounded_down(item.result.observed, ".3g"), rounded_up(item.result.claimed, ".3g"),
            rounded_down(item.control.proven_epsilon, ".3g"), _verdict(item),
        )
        for item in found
    ]  # fmt: skip
    rows = []
    for item in found:
        rows.append(_plot_row(f"{item.method}, {item.model}", item.overlap))
        rows.append(_plot_row(f"no privacy, {item.model}", item.control))
    unique = list({row["name"]: row for row in rows}.values())
    picture = to_markdown(reconstruction_plot(unique), "share of planted and of other keys written")
    return {
        "dpsynth/reconstruction": dg.MetadataValue.md(markdown_table(header, lines)),
        "dpsynth/reconstruction_plot": dg.MetadataValue.md(picture),
        "dpsynth/epsilon_proven": max((i.result.observed for i in found), default=0.0),
        "dpsynth/tests": len(found),
        "dpsynth/path": dg.MetadataValue.path(str(attacks_file())),
    }


def _plot_row(name: str, overlap: "Overlap") -> dict[str, Any]:
    return {
        "name": name,
        "source": (overlap.source.share, *overlap.source.interval),
        "held_out": (overlap.held_out.share, *overlap.held_out.interval),
    }


def _rate(rate: "Rate") -> str:
    low, high = rate.interval
    return f"{rate.hits} of {rate.keys}: {rate.share:.2%} [{low:.2%}, {high:.2%}]"


def _verdict(item: Reconstruction) -> str:
    if not item.result.passed:
        return "**claim refuted**"
    if item.result.observed > 0:
        return "copies, within its claim"
    return "passed" if item.has_power else "no power: this model copies no key"


def median_metadata(
    found: Mapping[str, Sequence["BatchGap"]], results: Sequence["AuditResult"]
) -> dict[str, Any]:
    """Bound of each batch and what neighbours attain of it, by folder of the method."""
    from dpsynth_assets.report.plots import median_audit_plot, to_markdown

    named = {
        f"{folder}, batch {batch.batch}" if len(found) > 1 else f"batch {batch.batch}": batch
        for folder, batches in found.items()
        for batch in batches
    }
    header = (
        "batch", "contexts", "tokens", "γ, claimed", "by removing contexts", "share",
        "by crafted contexts", "largest excess",
    )  # fmt: skip
    lines = [
        (
            name, b.contexts, b.tokens, rounded_up(b.claimed, ".3f"),
            rounded_down(b.removed, ".3f"), f"{b.attained:.0%}",
            rounded_down(b.crafted, ".3f"), f"{b.excess:.2g}",
        )
        for name, b in named.items()
    ]  # fmt: skip
    rows = [(name, b.claimed, b.crafted, b.removed) for name, b in named.items()]
    picture = to_markdown(median_audit_plot(rows), "ex-post bound and what contexts attain of it")
    return {
        "dpsynth/median_audit": dg.MetadataValue.md(markdown_table(header, lines)),
        "dpsynth/median_audit_plot": dg.MetadataValue.md(picture),
        "dpsynth/share_attained": max(b.attained for b in named.values()),
        "dpsynth/largest_excess": max(b.excess for b in named.values()),
        "dpsynth/passed": all(result.passed for result in results),
        "dpsynth/path": dg.MetadataValue.path(str(attacks_file())),
    }
