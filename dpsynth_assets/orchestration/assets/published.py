"""Writing what leaves: a corpus as Parquet that `datasets` can load, its card, and its label."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import polars as pl

from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.files.whole_folders import digest_of, replaced_whole, upload
from dpsynth_assets.methods.dataset_plan import PlannedMethod
from dpsynth_assets.orchestration.assets.audit import audit_results, recall_results
from dpsynth_assets.orchestration.assets.audit_trail import written_files
from dpsynth_assets.orchestration.assets.keys import EVALUATION_REPORT, named
from dpsynth_assets.orchestration.assets.stage_metadata import column_schema, sample_table
from dpsynth_assets.orchestration.metadata import bound_down, bound_up, in_words
from dpsynth_assets.paths import home
from dpsynth_assets.privacy.directed_rounding import declared, epsilon_up, rounded_up
from dpsynth_assets.privacy.events import Event
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.ledger import Ledger
from dpsynth_assets.releases.published_rows import published_rows
from dpsynth_assets.releases.store import StoreUnavailableError
from dpsynth_assets.report.attack_record import attacks_on_release, refusal
from dpsynth_assets.report.card_check import CARD_FILE, LABEL_FILE
from dpsynth_assets.report.cards import dataset_card
from dpsynth_assets.report.label import corpus_label
from dpsynth_assets.report.pages import asset_address


@dataclass(frozen=True, kw_only=True)
class Published:
    """Where a corpus was written, what the UI shows of it, and the SHA-256 of its rows."""

    folder: Path
    metadata: dict[str, Any]
    data_version: str


def released_folder(dataset: str, folder: str) -> Path:
    """Folder of one published corpus."""
    return home().released / dataset / folder


def released_rows_path(dataset: str, folder: str) -> Path:
    """The Parquet file of one published corpus."""
    return released_folder(dataset, folder) / "data" / "train-00000-of-00001.parquet"


def read_released(dataset: str, folder: str) -> pl.DataFrame:
    """Rows of a published corpus."""
    return pl.read_parquet(released_rows_path(dataset, folder))


def released_label(dataset: str, folder: str) -> dict[str, Any]:
    """The privacy label of a published corpus."""
    return dict(json.loads((released_folder(dataset, folder) / LABEL_FILE).read_text()))


def publish_corpus(
    spec: PrivateDatasetSpec,
    planned: PlannedMethod,
    candidate: pl.DataFrame,
    ledger: Ledger,
    builds_on: Sequence[Event] = (),
) -> Published:
    """Replaces the published folder with the candidate's rows, a card and a privacy label.

    Args:
        spec: The dataset.
        planned: The method.
        candidate: Rows that passed the gate.
        ledger: Paid for them.
        builds_on: Events of the releases behind the rows, whose audits the label lists.

    Raises:
        dg.Failure: An attack on the settings of this very release refuted its claim. What is there
            stays as it is.
    """
    rows = published_rows(spec, planned, candidate)
    reservation, entries = str(candidate["reservation"][0]), ledger.entries()
    attacks = attacks_on_release(entries, reservation)
    if (refused := refusal(attacks)) is not None:
        raise dg.Failure(description=refused, allow_retries=False)
    audits = [*audit_results([planned.plan.event, *builds_on]), *attacks]
    if planned.method.guarantee is GuaranteeType.SECRET:
        audits += recall_results(spec.name)
    label = corpus_label(entries, reservation, audits)
    final = released_folder(spec.name, planned.folder)
    card = dataset_card(label, columns=rows.columns, rows=rows.height)
    with replaced_whole(final) as folder:
        (folder / "data").mkdir()
        rows.write_parquet(folder / "data" / released_rows_path("", "").name)
        (folder / LABEL_FILE).write_text(json.dumps(label, indent=2, sort_keys=True))
        (folder / CARD_FILE).write_text(card)
    metadata = _metadata(spec, planned, rows, label) | {"dpsynth/card": dg.MetadataValue.md(card)}
    address = publish_copy(final)
    if address is not None:
        metadata["dpsynth/published"] = dg.MetadataValue.url(address)
    version = digest_of(released_rows_path(spec.name, planned.folder))
    return Published(folder=final, metadata=metadata, data_version=version)


def publish_copy(folder: Path) -> str | None:
    """Copies a folder under `released/` to DPSYNTH_PUBLISH_URL; returns where it lies now.

    Its label goes first and comes back last: what has no label there is not published.

    Raises:
        StoreUnavailableError: The place is out of reach; the folder itself is published already.
    """
    place = home().published
    if place is None:
        return None
    target = place.joinpath(*folder.relative_to(home().released).parts)
    try:
        if isinstance(target, Path):
            _copy(folder, target)
        else:
            upload(folder, target, last=LABEL_FILE)
    except Exception as error:  # noqa: BLE001 - object stores raise kinds of their own
        raise StoreUnavailableError(
            f"The corpus is in {folder}, but cannot be copied to {target} "
            f"({type(error).__name__}). Check DPSYNTH_PUBLISH_URL, the credentials and the "
            "network, and materialise it again, which is free."
        ) from None
    return str(target)


def _copy(folder: Path, target: Path) -> None:
    with replaced_whole(target) as temporary:
        shutil.copytree(folder, temporary, dirs_exist_ok=True)


def _first_line(spec: PrivateDatasetSpec, rows: pl.DataFrame, label: dict[str, Any]) -> str:
    """A corpus in one line: what is guaranteed, its rows, and where its scores are."""
    guarantee = label["guarantee"]
    held = f"{guarantee['type']}, which is not (ε, δ)-DP"
    if "epsilon" in guarantee:
        held = priced(spec, guarantee["epsilon"], guarantee["delta"], " guaranteed")
    return f"{held}, {rows.height} rows; {scores_link(spec)}"


def priced(spec: PrivateDatasetSpec, epsilon: float, delta: float, held: str = "") -> str:
    """ε of a corpus beside its budget, as `ε 5.69 of 8 guaranteed at δ 1e-6`."""
    of, at = declared(spec.budget.epsilon), rounded_up(delta).replace("e-0", "e-")
    return f"ε {epsilon_up(epsilon)} of {of}{held} at δ {at}"


def scores_link(spec: PrivateDatasetSpec) -> str:
    """Where the scores of a cohort's corpora are."""
    return f"scores: [internal report]({asset_address(f'{spec.name}/{EVALUATION_REPORT}')})"


def _metadata(
    spec: PrivateDatasetSpec, planned: PlannedMethod, rows: pl.DataFrame, label: dict[str, Any]
) -> dict[str, Any]:
    """What holds and for how many rows first; then numbers, files and the whole label."""
    folder = released_folder(spec.name, planned.folder)
    guarantee, cohort = label["guarantee"], label["cohort"]
    remaining = cohort["remaining_epsilon"]
    metadata: dict[str, Any] = {
        "dpsynth/corpus": dg.MetadataValue.md(_first_line(spec, rows, label)),
        "dpsynth/method": dg.MetadataValue.md(named(planned)),
    }
    metadata |= in_words(
        guarantee["type"],
        guarantee.get("epsilon"),
        delta=cohort["delta"],
        unit=label["privacy_unit"],
        budget=cohort["budget_epsilon"],
        spent=cohort["epsilon"],
        guaranteed=cohort["epsilon_guaranteed"],
        remaining=remaining,
    )
    metadata |= {
        "dpsynth/guarantee": guarantee["type"],
        "dpsynth/samples": sample_table(rows, spec.columns.labels),
    }
    if "epsilon" in guarantee:
        metadata |= {
            "dpsynth/epsilon": bound_up(guarantee["epsilon"]),
            "dpsynth/delta": float(guarantee["delta"]),
        }
    if "posterior" in guarantee:
        metadata |= {
            "dpsynth/dp_guarantee": guarantee["dp_guarantee"],
            "dpsynth/secret_prior": float(guarantee["prior"]),
            "dpsynth/secret_posterior": float(guarantee["posterior"]),
        }
    return metadata | {
        "dpsynth/epsilon_charged": 0.0,
        "dpsynth/epsilon_cumulative": bound_up(cohort["epsilon"]),
        "dpsynth/epsilon_guaranteed": bound_up(cohort["epsilon_guaranteed"]),
        "dpsynth/epsilon_remaining": bound_down(remaining),
        "dpsynth/cohort_guarantee": cohort["guarantee"],
        "dpsynth/privacy_unit": label["privacy_unit"],
        "dpsynth/neighboring_relation": label["neighboring_relation"],
        "dpsynth/folder": f"{home().released.name}/{spec.name}/{planned.folder} in DPSYNTH_HOME",
        "dpsynth/ledger_reservation": label["subject"]["reservation"],
        **written_files(folder),
        "dpsynth/privacy_label": dg.MetadataValue.json(label),
        "dagster/row_count": rows.height,
        **column_schema(rows, spec.columns.labels),
    }
