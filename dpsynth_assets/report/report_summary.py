"""What an evaluation report says first, and what its tables of text amount to.

All of it is read off rows of the report's table, as they are: values of the rows that were scored,
without a claim about others.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from dpsynth_assets.metrics.evaluation import REAL_DATA
from dpsynth_assets.privacy.directed_rounding import declared, epsilon_up, rounded_up
from dpsynth_assets.report.cells import format_cell
from dpsynth_assets.report.pages import Tile, Tiles

Row = Mapping[str, Any]

_HIGHEST = {"mauve": "Highest MAUVE", "accuracy": "Highest accuracy"}


def private_rows(table: Sequence[Row]) -> list[Row]:
    """Rows of corpora that are neither real data nor references, nor models without text."""
    return [r for r in table if r["name"] != REAL_DATA and r.get("role", "corpus") == "corpus"]


def summary(table: Sequence[Row], context: Mapping[str, Any]) -> Tiles:
    """Corpora, their highest scores and the cohort's spend."""
    own = private_rows(table)
    tiles = [Tile("Corpora", str(len(own)), "beside references and real data")]
    for metric, name in _HIGHEST.items():
        scored = [row for row in own if row.get(metric) is not None]
        if scored:
            best = max(scored, key=lambda row: float(row[metric]))
            spread = best.get(f"{metric}_std")
            beside = "" if spread is None else f" (± {format_cell(metric, spread)})"
            tiles.append(Tile(name, format_cell(metric, best[metric]), best["name"] + beside))
    rows = [row["scored_rows"] for row in table if row.get("scored_rows")]
    if rows:
        least, most = f"{min(rows):,}", f"{max(rows):,}"
        shown = least if least == most else f"{least} to {most}"
        tiles.append(Tile("Rows scored", shown, "of each corpus"))
    if "guaranteed_epsilon" in context:
        budget = f"of {declared(context['budget_epsilon'])}, δ = {rounded_up(context['delta'])}"
        tiles.append(Tile("ε guaranteed", epsilon_up(context["guaranteed_epsilon"]), budget))
    if "written" in context:
        tiles.append(Tile("Written", str(context["written"])))
    return Tiles(tuple(tiles))


def copying_sentences(table: Sequence[Row]) -> list[str]:
    """Says which corpus repeats most of the private text, beside held-out real records."""
    own = private_rows(table)
    real = next((row for row in table if row["name"] == REAL_DATA), {})
    told = [
        _share_sentence("verbatim_share", "Rows with a long span of a source record", own, real),
        _share_sentence("near_duplicate_share", "Near duplicates of a source record", own, real),
        _canary_sentence(own),
    ]
    return [sentence for sentence in told if sentence]


def _share_sentence(key: str, what: str, own: Sequence[Row], real: Row) -> str:
    known = [row for row in own if row.get(key) is not None]
    if not known:
        return ""
    most = max(known, key=lambda row: float(row[key]))
    found = f"{format_cell(key, most[key])} ({most['name']})" if most[key] else "none"
    beside = (
        "" if real.get(key) is None else f"; of held-out real records {format_cell(key, real[key])}"
    )
    return f"{what}, at most in a corpus: {found}{beside}."


def _canary_sentence(own: Sequence[Row]) -> str:
    known = [row for row in own if row.get("canaries_found") is not None]
    found = [row["name"] for row in known if row["canaries_found"]]
    if not known:
        return ""
    return f"Canaries were found in {', '.join(found)}." if found else "No canary was found."
