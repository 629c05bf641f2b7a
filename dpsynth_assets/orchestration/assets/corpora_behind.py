"""Published corpora that another method of the cohort builds on, and the charges behind them."""

import json
from dataclasses import replace

import dagster as dg
import polars as pl

from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.methods.dataset_plan import PlannedMethod, PlannedShared
from dpsynth_assets.methods.inputs import PublicInputs
from dpsynth_assets.methods.stages import CANDIDATE_CORPUS, FINETUNED_GENERATOR
from dpsynth_assets.orchestration.assets.published import released_folder
from dpsynth_assets.orchestration.resources.release_store import ReleaseStore
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.ledger import Ledger
from dpsynth_assets.releases.sealed import sealed_release
from dpsynth_assets.report.card_check import LABEL_FILE


def with_corpora(
    public: PublicInputs,
    spec: PrivateDatasetSpec,
    planned: PlannedMethod,
    book: Ledger,
    store: ReleaseStore,
) -> PublicInputs:
    """Adds the published corpora that a method builds on, from the releases that were paid for.

    Fine-tuned weights that wrote such a corpus come with it, where the method reads them.

    Raises:
        dg.Failure: One is not published, or is not DP.
    """
    corpora, generators = {}, {}
    for folder, reservation in _corpus_charges(spec, planned).items():
        asset = f"{spec.name}/{folder}/{CANDIDATE_CORPUS}"
        _, rows = sealed_release(book, store, reservation, asset)
        corpora[folder] = pl.DataFrame() if rows is None else rows
        weights = _generator_behind(book, reservation) if planned.method.reads_generator else None
        if weights is not None:
            sealed_release(book, store, weights, f"{spec.name}/{folder}/{FINETUNED_GENERATOR}")
            generators[folder] = store.files(weights)
    return replace(public, corpora=corpora, generators=generators)


def _generator_behind(book: Ledger, reservation: str) -> str | None:
    """The charge of the weights that wrote a corpus; None where no weights of the cohort did."""
    charge = book.charge(reservation)
    inputs = {} if charge is None else charge.parameters.get("inputs", {})
    found: str | None = inputs.get(FINETUNED_GENERATOR)
    return found


def charges_behind(
    spec: PrivateDatasetSpec, planned: PlannedMethod | PlannedShared, book: Ledger
) -> dict[str, str]:
    """The charge of what a method builds on, by folder: of a corpus, or of the weights behind it.

    A method that reads weights alone names theirs: other rows of their corpus, which are free, then
    make no other release of it.

    Raises:
        dg.Failure: A corpus is not published, or is not DP.
    """
    corpora = _corpus_charges(spec, planned)
    if not (isinstance(planned, PlannedMethod) and planned.method.reads_generator):
        return corpora
    return {name: _generator_behind(book, each) or each for name, each in corpora.items()}


def _corpus_charges(
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
