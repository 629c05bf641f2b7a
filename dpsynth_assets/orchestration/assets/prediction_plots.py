"""Pictures for the steward: costs of private prediction, and clusterings of the private records.

Costs of the median, true cluster sizes and V-measures are computed from private data without noise:
the asset is internal, nothing released may depend on it, and they are shown in the owner-only
report alone, not in Dagster's metadata. Pictures of released numbers come from `released_metadata`
and may stand at released assets.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
import numpy as np

from dpsynth_assets.clustering import nearest_center
from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.files.identity import version_of
from dpsynth_assets.files.whole_files import write_whole
from dpsynth_assets.methods.dataset_plan import DatasetPlan
from dpsynth_assets.methods.stages import SHARED
from dpsynth_assets.orchestration.assets.automation import FOLLOWS_RELEASES
from dpsynth_assets.orchestration.assets.groups import level_group
from dpsynth_assets.orchestration.assets.keys import (
    dataset_key,
    prediction_costs_key,
    public_key,
)
from dpsynth_assets.orchestration.assets.published import (
    read_released,
    released_folder,
    released_rows_path,
)
from dpsynth_assets.orchestration.assets.released_values import stage_facts
from dpsynth_assets.orchestration.assets.scoring import internal_facts
from dpsynth_assets.orchestration.assets.stage_metadata import pictures_metadata
from dpsynth_assets.orchestration.metadata import code_references
from dpsynth_assets.orchestration.resources.private_section import private_section
from dpsynth_assets.orchestration.resources.progress import Progress
from dpsynth_assets.orchestration.resources.release_store import ReleaseStore
from dpsynth_assets.orchestration.resources.sensitive_store import SensitiveStore
from dpsynth_assets.paths import home
from dpsynth_assets.report.card_check import LABEL_FILE
from dpsynth_assets.tags import INTERNAL, PRIVACY

if TYPE_CHECKING:
    from dpsynth_assets.metrics.clusterings import ClusteringScores

KMEANS, PUBLIC_CENTERS = "k-means, not private", "public centres"
REBALANCED = "rebalanced, labels aside"
SCORES_FILE = "clusterings.json"
SEED = 0


def prediction_plot_definitions(spec: PrivateDatasetSpec, plan: DatasetPlan) -> dg.Definitions:
    """The internal pictures of one dataset."""
    return dg.Definitions(assets=[_prediction_costs(spec, plan)])


def prediction_folder(dataset: str) -> Path:
    """Owner-only folder of the pictures of one dataset."""
    return home().reports / dataset / "prediction"


def prediction_pictures(dataset: str) -> dict[str, bytes]:
    """PNG pictures by name in the order of their titles; none before the asset was made."""
    from dpsynth_assets.report.prediction_plots import TITLES

    paths = {name: prediction_folder(dataset) / f"{name}.png" for name in TITLES}
    return {name: path.read_bytes() for name, path in paths.items() if path.exists()}


def _prediction_costs(spec: PrivateDatasetSpec, plan: DatasetPlan) -> dg.AssetsDefinition:
    ins = {"public_clusters": dg.AssetIn(public_key(spec.public_data, "public_clusters"))}
    if plan.histogram is not None:
        ins["cluster_histogram"] = dg.AssetIn(dataset_key(spec.name, SHARED, "cluster_histogram"))

    @dg.asset(
        key=prediction_costs_key(spec.name),
        group_name=level_group(spec.name, INTERNAL),
        owners=spec.owners,
        tags={PRIVACY: INTERNAL},
        metadata=code_references(
            "dpsynth_assets.metrics.clusterings.score_clusterings",
            "dpsynth_assets.report.prediction_plots.internal_pictures",
        ),
        ins=ins,
        deps=[
            dataset_key(spec.name, SHARED, "private_records"),
            dataset_key(spec.name, SHARED, "private_embeddings"),
            *(dataset_key(spec.name, planned.folder, "corpus") for planned in plan.corpora),
        ],
        kinds={"scikitlearn", "matplotlib"},
        automation_condition=FOLLOWS_RELEASES,
        code_version=version_of("prediction costs, labels aside", spec.methods),
        description=(
            "What the median's tokens cost along a text and batch by batch (Amin et al. 2025, "
            "Figures 3 to 6), sizes and V-measure of clusterings (Figure 2, Table 2; rebalanced "
            "without regard to labels, which would tell themselves), and how many tokens were "
            "private. Private pictures stand in the report alone. Internal."
        ),
    )
    @private_section(f"{spec.name}/evaluation/prediction_costs")
    def prediction_costs(
        context: dg.AssetExecutionContext,
        public_clusters: np.ndarray,
        sensitive_store: SensitiveStore,
        release_store: ReleaseStore,
        progress: Progress,
        **upstream: dict,
    ) -> dg.MaterializeResult:
        from dpsynth_assets.report.prediction_plots import internal_pictures

        report = progress.start(context, f"{spec.name}: costs and clusterings")
        released_counts = upstream.get("cluster_histogram")
        histogram = None if released_counts is None else stage_facts(released_counts)
        report(0.0, "clustering the records")
        scores = _scored_clusterings(spec, public_clusters, histogram, sensitive_store)
        facts = {
            planned.folder: internal_facts(sensitive_store, spec.name, planned.folder)
            for planned in plan.corpora
        }
        released = _released_pictures(spec, plan, histogram, release_store)
        pictures = internal_pictures(facts, scores) | released
        folder = _write(prediction_folder(spec.name), pictures, scores)
        report(1.0, "pictures written")
        # Private costs and counts stay in the owner-only folder and the internal report:
        # Dagster's event log is not a place for them.
        shown = {"dpsynth/folder": dg.MetadataValue.path(str(folder))}
        return dg.MaterializeResult(metadata={**shown, **pictures_metadata(released)})

    return prediction_costs


def _scored_clusterings(
    spec: PrivateDatasetSpec,
    centers: np.ndarray,
    histogram: Mapping[str, Any] | None,
    store: SensitiveStore,
) -> "list[ClusteringScores]":
    """Sizes and agreement of the clusterings of Table 2 that are there."""
    from dpsynth_assets.metrics.clusterings import private_kmeans, score_clusterings

    records, embeddings = store.read_for_scoring(spec.name, "source")
    labels = records["label"].to_list()
    clusterings = {}
    if (found := private_kmeans(embeddings, clusters=len(centers), seed=SEED)) is not None:
        clusterings[KMEANS] = found
    clusterings[PUBLIC_CENTERS] = nearest_center(embeddings, centers).astype(np.int64)
    if histogram is not None:
        clusterings[REBALANCED] = rebalanced_clusters(embeddings, centers, histogram)
    return score_clusterings(clusterings, labels, reference=KMEANS)


def rebalanced_clusters(
    embeddings: np.ndarray, centers: np.ndarray, histogram: Mapping[str, Any]
) -> np.ndarray:
    """(N,) nearest centre among the k' whose released counts are largest, summed over labels.

    Batches keep k' centres for each label, so a record's centre tells its label whatever the
    records say: at k' = 10 of 100 centres a V-measure above .4 where labels are coins. Labels
    are set aside here, and agreement with them is found only where it is.

    Args:
        embeddings: (N, d), unit length, private.
        centers: (K, d), unit length, public.
        histogram: Released facts of the cluster histogram; k' is the most centres a label keeps.

    **Source** Amin et al. 2025, section 4.1, "public centers with rebalancing", and Table 2.
    **Privacy** The kept centres are post-processing of the histogram; the clusters are private.
    """
    kept = _fullest_centers(histogram, len(centers))
    return nearest_center(embeddings, centers, allowed=kept).astype(np.int64)


def _fullest_centers(histogram: Mapping[str, Any], centers: int) -> np.ndarray:
    """(k',) largest first; of counts after rebalancing where the release kept none of before."""
    most = max(len(kept) for kept in histogram["centers"])
    dp_counts = np.zeros(centers)
    if before := histogram.get("dp_counts_before"):
        dp_counts += np.sum(before, axis=0)
    else:
        for kept, counts in zip(histogram["centers"], histogram["dp_counts"], strict=True):
            dp_counts[kept] += counts
    return np.argsort(-dp_counts, kind="stable")[:most]


def _released_pictures(
    spec: PrivateDatasetSpec,
    plan: DatasetPlan,
    histogram: Mapping[str, Any] | None,
    store: ReleaseStore,
) -> dict[str, bytes]:
    """Pictures of released numbers, all published corpora side by side."""
    from dpsynth_assets.report.prediction_plots import (
        rebalanced_counts,
        rebalancing_plot,
        released_pictures,
    )

    pictures = {}
    if histogram is not None:
        pictures["noisy_cluster_sizes"] = rebalancing_plot(rebalanced_counts(histogram))
    corpora = {
        planned.folder: (
            _released_facts(spec.name, planned.folder, store),
            read_released(spec.name, planned.folder),
        )
        for planned in plan.corpora
        if released_rows_path(spec.name, planned.folder).exists()
    }
    return pictures | released_pictures(corpora)


def _released_facts(dataset: str, folder: str, store: ReleaseStore) -> dict[str, Any]:
    """Facts of the release behind a published corpus; none where the store was cleared."""
    label = json.loads((released_folder(dataset, folder) / LABEL_FILE).read_text())
    reservation = label["subject"]["reservation"]
    return store.load(reservation)[0] if store.has(reservation) else {}


def _write(
    folder: Path, pictures: Mapping[str, bytes], scores: "Sequence[ClusteringScores]"
) -> Path:
    """Replaces the pictures and the scores of an earlier run, for their owner only."""
    shutil.rmtree(folder, ignore_errors=True)
    rows = [asdict(score) | {"sizes": score.sizes.tolist()} for score in scores]
    contents = {f"{name}.png": png for name, png in pictures.items()}
    contents[SCORES_FILE] = json.dumps(rows, indent=2).encode()
    for name, content in contents.items():
        write_whole(folder / name, content)
    return folder
