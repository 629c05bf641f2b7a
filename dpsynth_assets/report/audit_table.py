"""The spends of a cohort as one table of Markdown, with links into the web UI."""

from urllib.parse import quote

from dpsynth_assets.privacy.directed_rounding import epsilon_down, epsilon_up
from dpsynth_assets.report.audit_trail import RELEASED_STATE, AuditTrail, Spend
from dpsynth_assets.report.cells import left_in_words
from dpsynth_assets.report.pages import Cell, Link, TableBlock, asset_address, to_markdown

LEVELS = (
    "Levels: **public** holds nothing of any private record; **sensitive** is for the steward's "
    "machine alone; **internal** was computed from private text without noise, and is for the "
    "steward; **released** carries the guarantee that stands beside it, and may be read by "
    "whomever it is given to."
)
"""The privacy levels of assets, in one sentence each."""

EXPLAINED = (
    "**ε alone** is the best bound of a release by itself. **ε added** is by how much it raises "
    "the total so far, which the accountant of the budget composes of all charges. In it a first "
    "or small release may add more than ε alone, as its own best bound does not compose; many "
    "releases together cost less than the sum of their ε alone. What is guaranteed of all of them "
    "stands in the privacy statement; what is guaranteed of one corpus, on its card.\n\n"
    "**who may read** names the level. A charge that stored nothing is never given back: private "
    "records may have been read under it. **builds on** names the charges behind a release by "
    "their entry in the ledger; ε of a corpus includes theirs. Releases and runs are links.\n\n"
)
"""Below the spend table: long enough, too, that the web UI folds the table away at any length and
opens it in a window of its own, where its columns have room."""

_HEADER = (
    "entry", "release", "mechanism", "ε alone", "ε added to the total", "total so far",
    "ε guaranteed", "ε left", "run", "launched by", "who may read", "builds on", "when (UTC)",
)  # fmt: skip


def spend_table(trail: AuditTrail) -> str:
    """Every charge as Markdown, with what its columns mean."""
    if not trail.spends:
        return "Nothing was charged yet."
    return f"{to_markdown([spend_block(trail)])}\n\n{EXPLAINED}{LEVELS}"


def spend_block(trail: AuditTrail) -> TableBlock:
    """Every charge with its ε, its run, who launched it, who may read it and its inputs."""
    numeric = tuple(name == "entry" or name.startswith(("ε", "total")) for name in _HEADER)
    rows = tuple(map(_row, trail.spends))
    return TableBlock(_HEADER, rows, numeric, caption="Charges, oldest first")


def _row(spend: Spend) -> tuple[Cell, ...]:
    released = spend.state == RELEASED_STATE
    return (
        str(spend.seq),
        Link(f"{spend.asset} ({spend.release})", asset_address(spend.asset)),
        spend.mechanism,
        epsilon_up(spend.epsilon_alone),
        epsilon_up(spend.epsilon_added),
        epsilon_up(spend.epsilon_cumulative),
        epsilon_up(spend.epsilon_guaranteed),
        epsilon_down(spend.epsilon_remaining),
        Link(spend.run_id[:8], f"/runs/{spend.run_id}") if spend.run_id else "—",
        spend.launched_by,
        f"released ({spend.guarantee})" if released else "nobody: charged, nothing stored",
        ", ".join(f"entry {seq}" for seq in spend.builds_on) or "no other charge",
        spend.recorded_at[:16].replace("T", " "),
    )


def spent_in_words(trail: AuditTrail) -> str:
    """What was spent and what is left, a line for each account that paid."""
    last = {spend.cohort: spend for spend in trail.spends}
    return (
        "; ".join(
            f"{cohort}: ε = {epsilon_up(spend.epsilon_cumulative)} spent, "
            f"{left_in_words(spend.epsilon_remaining)}, guaranteed: ε = "
            f"{epsilon_up(spend.epsilon_guaranteed)}"
            for cohort, spend in sorted(last.items())
        )
        or "Nothing was charged yet."
    )


def corpora_links(trail: AuditTrail) -> str:
    """Links to the assets that wrote released files."""
    assets = sorted({file.asset for file in trail.files if file.asset})
    links = ", ".join(f"[{asset}]({quote(asset_address(asset), safe='/?=&')})" for asset in assets)
    return links or "Nothing was published."
