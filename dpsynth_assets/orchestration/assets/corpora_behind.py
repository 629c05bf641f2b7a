"""Published corpora that another method of the cohort builds on, and the charges behind them."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import dagster as dg
import polars as pl

from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.methods.inputs import PublicInputs
from dpsynth_assets.methods.provenance import Node
from dpsynth_assets.methods.stages import CANDIDATE_CORPUS, FINETUNED_GENERATOR
from dpsynth_assets.orchestration.assets.keys import dataset_key
from dpsynth_assets.orchestration.assets.published import released_folder
from dpsynth_assets.orchestration.assets.released_values import reservation_of
from dpsynth_assets.orchestration.resources.release_store import ReleaseStore
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.ledger import Ledger
from dpsynth_assets.public_base.inputs import public_versions
from dpsynth_assets.releases.sealed import sealed_release
from dpsynth_assets.report.card_check import LABEL_FILE


def with_corpora(
    public: PublicInputs, node: Node, book: Ledger, store: ReleaseStore
) -> PublicInputs:
    """Adds the published corpora that a node reads, from the releases that were paid for.

    Fine-tuned weights that wrote such a corpus come with it, where the method reads them.

    Raises:
        dg.Failure: One is not published, or is not DP.
    """
    corpora, generators = {}, {}
    for folder, place in node.corpora.items():
        reservation, cohort = _charge_behind(node.spec, folder), node.spec.name
        asset = f"{cohort}/{folder}/{CANDIDATE_CORPUS}"
        _, rows = sealed_release(book, store, reservation, asset)
        corpora[folder] = pl.DataFrame() if rows is None else rows
        weights = _charge_of(place, reservation, book)
        if weights != reservation:
            sealed_release(book, store, weights, f"{cohort}/{place}")
            generators[folder] = store.files(weights)
    return replace(public, corpora=corpora, generators=generators)


def corpora_read(node: Node) -> list[dg.AssetKey]:
    """Keys of the published corpora that a node reads."""
    return [dataset_key(node.spec.name, folder, "corpus") for folder in node.corpora]


def inputs_of(
    node: Node, public: Mapping[str, Any], upstream: Mapping[str, Any], book: Ledger
) -> dict[str, str]:
    """Identity of all that a node is made from: public artifacts, and charges of releases.

    A method that reads weights alone names theirs, not their corpus: other rows of it, which are
    free, then make no other release.

    Args:
        node: What is released.
        public: Artifacts of the public base.
        upstream: Values of the stages and histograms that it reads, by name.
        book: Where the releases were charged.

    Raises:
        dg.Failure: A corpus is not published, or is not DP.
    """
    charges = {place: reservation_of(upstream[name]) for name, place in node.reads.items()}
    for folder, place in node.corpora.items():
        charges[place] = _charge_of(place, _charge_behind(node.spec, folder), book)
    return node.inputs(public_versions(public), charges)


def _charge_of(place: str, corpus: str, book: Ledger) -> str:
    """The charge of a published corpus, or of the weights that wrote it, where a method reads them.

    Where no weights of the cohort wrote it, the corpus stands for them.
    """
    charge = None if place.endswith(f"/{CANDIDATE_CORPUS}") else book.charge(corpus)
    return corpus if charge is None else str(charge.inputs.get(FINETUNED_GENERATOR, corpus))


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
