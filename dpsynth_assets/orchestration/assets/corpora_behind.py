"""Published corpora that another method of the cohort builds on: the charges behind them."""

import json

import dagster as dg

from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.methods.provenance import Node
from dpsynth_assets.methods.stages import CANDIDATE_CORPUS, FINETUNED_GENERATOR
from dpsynth_assets.orchestration.assets.keys import dataset_key
from dpsynth_assets.orchestration.assets.published import released_folder
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.ledger import Ledger
from dpsynth_assets.report.card_check import LABEL_FILE


def corpora_read(node: Node) -> list[dg.AssetKey]:
    """Keys of the published corpora that a node reads."""
    return [dataset_key(node.spec.name, folder, "corpus") for folder in node.corpora]


def corpus_charges(node: Node, book: Ledger) -> dict[str, str]:
    """Charge of each published corpus that a node reads, and of the weights that wrote it.

    A method that reads weights alone names theirs, not their corpus: other rows of it, which are
    free, then make no other release.

    Raises:
        dg.Failure: A corpus is not published, or is not DP.
    """
    charges = {}
    for folder, place in node.corpora.items():
        corpus = _charge_behind(node.spec, folder)
        charges[place] = _charge_of(place, corpus, book)
        charges[f"{folder}/{CANDIDATE_CORPUS}"] = corpus
    return charges


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
