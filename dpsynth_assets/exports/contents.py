"""The files of a package but its proof: rows or weights, card and label."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from dpsynth_assets.exports.strangers_files import text_of
from dpsynth_assets.report.cards import (
    CARD_FILE,
    LABEL_FILE,
    HubFacts,
    hub_dataset_card,
    hub_model_card,
)
from dpsynth_assets.report.label import CORPUS

ROWS_PER_FILE = 100_000
PROMPTS_FILE = "prompts.json"


def write_corpus(folder: Path, label: Mapping[str, Any], rows: pl.DataFrame, hub: HubFacts) -> None:
    """Writes a corpus as `datasets.load_dataset` reads it.

    Args:
        folder: An empty folder.
        label: Privacy label of the published corpus.
        rows: Its rows.
        hub: What the card says besides.
    """
    (folder / "data").mkdir()
    parts = [rows.slice(start, ROWS_PER_FILE) for start in range(0, rows.height, ROWS_PER_FILE)]
    for number, part in enumerate(parts or [rows]):
        name = f"train-{number:05d}-of-{max(1, len(parts)):05d}.parquet"
        part.rechunk().write_parquet(folder / "data" / name)
    _write_text(folder, label, hub_dataset_card(label, rows, hub))


def write_generator(
    folder: Path,
    label: Mapping[str, Any],
    weights: Path,
    prompts: Mapping[str, str],
    hub: HubFacts,
) -> None:
    """Writes a generator as `AutoModelForCausalLM.from_pretrained` reads it.

    Args:
        folder: An empty folder.
        label: Privacy label of the generator.
        weights: The released folder: weights with everything folded in, tokenizer, configuration.
        prompts: Label -> the text that a row of it is written after.
        hub: What the card says besides.
    """
    shutil.copytree(weights, folder, dirs_exist_ok=True, copy_function=shutil.copyfile)
    _write_prompts(folder, label, prompts, hub)


def write_again(source: Path, folder: Path, label: Mapping[str, Any], hub: HubFacts) -> None:
    """Writes what the files of a package say, but a generator's weights.

    Args:
        source: The package.
        folder: An empty folder.
        label: Its label.
        hub: What its card says besides.
    """
    if label["subject"]["kind"] == CORPUS:
        write_corpus(folder, label, pl.read_parquet(source / "data"), hub)
        return
    prompts = json.loads(text_of(source / PROMPTS_FILE))
    _write_prompts(folder, label, prompts, hub)


def _write_prompts(
    folder: Path, label: Mapping[str, Any], prompts: Mapping[str, str], hub: HubFacts
) -> None:
    document = json.dumps(dict(prompts), indent=1, ensure_ascii=False)
    (folder / PROMPTS_FILE).write_text(document + "\n", encoding="utf-8")
    _write_text(folder, label, hub_model_card(label, prompts, hub))


def _write_text(folder: Path, label: Mapping[str, Any], card: str) -> None:
    (folder / LABEL_FILE).write_text(json.dumps(label, indent=2, sort_keys=True))
    (folder / CARD_FILE).write_text(card, encoding="utf-8")
