"""Published corpora that another method of the cohort builds on, and the charges behind them."""

import json
from collections.abc import Mapping

import dagster as dg
import polars as pl

from dpsynth_assets.assets.published import released_folder
from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.methods.dataset_plan import PlannedMethod, PlannedShared
from dpsynth_assets.methods.stages import CANDIDATE_CORPUS
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.ledger import Ledger
from dpsynth_assets.releases.sealed import sealed_release
from dpsynth_assets.report.card_check import LABEL_FILE
from dpsynth_assets.resources.release_store import ReleaseStore


def corpora_behind(
    spec: PrivateDatasetSpec, planned: PlannedMethod, book: Ledger, store: ReleaseStore
) -> Mapping[str, pl.DataFrame]:
    """Rows of the published corpora that a method builds on, from the releases that were paid for.

    Raises:
        dg.Failure: One is not published, or is not DP.
    """
    found = {}
    for folder, reservation in charges_behind(spec, planned).items():
        asset = f"{spec.name}/{folder}/{CANDIDATE_CORPUS}"
        _, rows = sealed_release(book, store, reservation, asset)
        found[folder] = pl.DataFrame() if rows is None else rows
    return found


def charges_behind(
    spec: PrivateDatasetSpec, planned: PlannedMethod | PlannedShared
) -> dict[str, str]:
    """The charge behind each published corpus that a method builds on, by folder.

    Raises:
        dg.Failure: One is not published, or is not DP.
    """
    folders = planned.builds_on if isinstance(planned, PlannedMethod) else ()
    return {folder: _charge_behind(spec, folder) for folder in folders}


def _charge_behind(spec: PrivateDatasetSpec, folder: str) -> str:
    """The charge behind a published corpus, which must be DP itself to be written from further.

    The plan has asked the dataset file; what lies there may be older than the file.

    Raises:
        dg.Failure: No corpus is published there, or one that is not DP.
    """
    place = released_folder(spec.name, folder) / LABEL_FILE
    label = json.loads(place.read_text()) if place.exists() else None
    published = "none" if label is None else label["guarantee"]["type"]
    if label is None or published != GuaranteeType.DP:
        raise dg.Failure(
            description=f"Expected a published corpus of {folder} that is DP, got {published}. "
            f"Materialise {folder} under the present dataset file first.",
            allow_retries=False,
        )
    return str(label["subject"]["reservation"])
