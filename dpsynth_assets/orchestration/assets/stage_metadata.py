"""Metadata of a release: short facts, noise, plots, tables, and the course of an evolution.

**Privacy** Post-processing of released values: released generations and public text alone.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import dagster as dg
import polars as pl

from dpsynth_assets.datasets.fields import OWN_COLUMNS
from dpsynth_assets.methods.dataset_plan import Planned
from dpsynth_assets.methods.evolution.population import read_generations
from dpsynth_assets.methods.provenance import Node
from dpsynth_assets.methods.shared_histograms import ClusterCounting, TopicCounting
from dpsynth_assets.releases.once import StoredRelease
from dpsynth_assets.report.cards import MEANINGS
from dpsynth_assets.report.pages import markdown_table, shortened
from dpsynth_assets.report.plots import (
    TITLES,
    rebalanced_counts,
    rebalancing_plot,
    released_pictures,
    to_markdown,
    votes_by_rank_plot,
)
from dpsynth_assets.run.runner import Runner

SHOWN_TOPICS = 12


def shown_facts(stored: StoredRelease) -> dict[str, Any]:
    """Selects released numbers and words short enough for a list of metadata."""
    return {k: v for k, v in stored.facts.items() if isinstance(v, int | float | str)}


def stage_pictures(
    node: Node, stored: StoredRelease, public: Mapping[str, Any], runner: Runner
) -> dict[str, Any]:
    """Draws what one stage released, where there is something to see.

    Args:
        node: The stage with its mechanism, or the writing of rows.
        stored: What was released.
        public: Upstream artifacts of the public base, by name.
        runner: Opens the topic model, whose keywords name topics, and released files.
    """
    facts, part, stage = stored.facts, node.part, node.stage
    mechanism = None if stage is None else stage.mechanism
    if isinstance(mechanism, ClusterCounting):
        shown = _cluster_plot(facts)
    elif isinstance(mechanism, TopicCounting):
        keywords = runner.models.topic_model(public["topic_model"]).keywords
        shown = _topics(facts, keywords)
    elif stage is not None and stage.releases_rounds:
        return _rounds(part, stored, runner.store.files(stored.reservation.id))
    else:
        return pictures_metadata(released_pictures({part.folder: facts}))
    return {"dpsynth/noise_scale": mechanism.histogram.scale, **shown}


def pictures_metadata(pictures: Mapping[str, bytes]) -> dict[str, dg.MetadataValue]:
    """Embeds PNG pictures by name into metadata."""
    return {
        f"dpsynth/plot_{name}": dg.MetadataValue.md(to_markdown(png, TITLES[name]))
        for name, png in pictures.items()
    }


def _cluster_plot(facts: Mapping[str, Any]) -> dict[str, dg.MetadataValue]:
    """Draws noisy counts of clusters before and after rebalancing; a single cluster is none."""
    if sum(map(len, facts["dp_counts"])) < 2:
        return {}
    return pictures_metadata({"noisy_cluster_sizes": rebalancing_plot(rebalanced_counts(facts))})


def _topics(
    facts: Mapping[str, Any], keywords: Sequence[Sequence[str]]
) -> dict[str, dg.MetadataValue]:
    """Lists the largest noisy topics of each label with their keywords."""
    lines: list[tuple[object, ...]] = []
    for name, counts in zip(facts["labels"], facts["dp_counts"], strict=True):
        largest = sorted(range(len(counts)), key=lambda topic: -counts[topic])[:SHOWN_TOPICS]
        lines += [(name or "all", _words(keywords, topic), counts[topic]) for topic in largest]
    table = markdown_table(("label", "topic", "noisy count"), lines)
    return {"dpsynth/topics": dg.MetadataValue.md(table)}


def _words(keywords: Sequence[Sequence[str]], topic: int) -> str:
    return ", ".join(keywords[topic][:5]) if topic < len(keywords) else "unclassified"


# Columns of a corpus with their meaning, and a few of its rows, as metadata of its asset.
#
# **Privacy** Post-processing of released rows.


SAMPLES: Final = 5
"""Rows of a corpus that its page in the web UI shows, more only where it has more labels."""
MOST_SAMPLES: Final = 20
SAMPLE_CHARACTERS: Final = 400

_MEANINGS: Final = MEANINGS | {
    "label": "label; several label columns are joined into one",
    "reservation": "charge in the ledger that paid for the row",
}


def column_schema(rows: pl.DataFrame, labels: Sequence[str] = ()) -> dict[str, Any]:
    """Metadata under `dagster/column_schema`: name, type and meaning of every column.

    Args:
        rows: The corpus.
        labels: Its label columns.
    """
    other = "released with the text by the method"
    columns = [
        dg.TableColumn(
            name,
            type=str(kind).lower(),
            description=f"label in the column {name}"
            if name in labels
            else _MEANINGS.get(name.removeprefix(OWN_COLUMNS), other),
        )
        for name, kind in rows.schema.items()
    ]
    return {"dagster/column_schema": dg.TableSchema(columns=columns)}


def sample_table(rows: pl.DataFrame, labels: Sequence[str]) -> dg.TableMetadataValue:
    """A few rows, labels first: one of each label, and further ones in turn.

    Args:
        rows: The corpus.
        labels: Its label columns.
    """
    turn = pl.int_range(pl.len())
    first = rows.select(*labels, "text").sort(
        turn.over(labels) if labels else turn, maintain_order=True
    )
    of_each = rows.select(labels).n_unique() if labels and rows.height else 0
    records = [
        dg.TableRecord({name: shortened(value, SAMPLE_CHARACTERS) for name, value in row.items()})
        for row in first.head(min(MOST_SAMPLES, max(SAMPLES, of_each))).iter_rows(named=True)
    ]
    columns = [dg.TableColumn(name, "string") for name in first.columns]
    return dg.MetadataValue.table(records=records, schema=dg.TableSchema(columns=columns))


def _rounds(part: Planned, stored: StoredRelease, files: Path) -> dict[str, Any]:
    """Votes and survivors of every round, of the released population."""
    generations = read_generations(files)
    picture = votes_by_rank_plot(generations, part.plan.parameters.get("noise_std"))
    return {
        "dpsynth/rounds": dg.MetadataValue.md(rounds_table(stored.facts)),
        **pictures_metadata({"votes_by_rank": picture}),
    }


def rounds_table(facts: Mapping[str, Any]) -> str:
    """Markdown table: a line a round."""
    told = zip(facts["vote_entropy"], facts["survivors_new"], facts["votes_total"], strict=True)
    lines = [
        (number, f"{entropy:.2f}", f"{new:.0%}", f"{votes:,.0f}")
        for number, (entropy, new, votes) in enumerate(told, 1)
    ]
    return markdown_table(("round", "vote entropy (bits)", "new survivors", "votes"), lines)
