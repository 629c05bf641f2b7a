"""Invented sources full of canaries, and the cohort that is run on them in a rehearsal."""

import json
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dpsynth_assets.datasets import PrivateDatasetSpec, PublicDataSpec

COHORT, TORN, BASE = "rehearsal", "torn", "rehearsal_base"
LABELS = ("billing", "delivery")
PUBLIC_WORDS = ("regards", "parcel", "invoice", "shows too much")
"""Words that a corpus is bound to contain: a list of canaries that names them closes its gate."""

RECORDS = 100
CANARIES_A_TEXT = 6
SET_ASIDE = 150
_CODE_LETTERS = "BCDFGHJKLMNPQRSTVWXZ23456789"
_CODE_CHARACTERS = 16
_BODIES = {
    "billing": "the invoice shows {} euros too much",
    "delivery": "the parcel is {} days late",
}
_CLOSINGS = (
    "kind regards from the hills",
    "please help me soon with this parcel",
    "thank you for looking into my invoice",
)
_MODEL = {
    "vocabulary": 400,
    "width": 32,
    "layers": 2,
    "heads": 2,
    "feed_forward": 64,
    "token_budget": 10_000,
    "sequence_tokens": [96],
}
_GENERATOR = {
    "vocabulary": 400,
    "width": 32,
    "decoder_layers": 1,
    "heads": 2,
    "feed_forward": 64,
    "token_budget": 10_000,
    "batch_tokens": 512,
}
_DECODING = {
    "expected_batch_size": 24,
    "max_batches": 2,
    "max_document_tokens": 30,
    "max_example_tokens": 40,
    "min_tokens_for_new_document": 8,
}
_TRAINING = {"steps": 2, "sampling_probability": 0.1, "rows": 20, "max_document_tokens": 30}


@dataclass(frozen=True)
class Planted:
    """Where the sources are, and what must be found nowhere else."""

    folder: Path
    canaries: tuple[str, ...] = field(repr=False)


def plant(folder: Path) -> Planted:
    """Writes a public base, a private source and a torn one; every private field holds canaries.

    Texts, ids, units, labels that nobody declared, lines that are no JSON and texts that are no
    text: whatever reading does with a record, a canary is in it.
    """
    codes: list[str] = []
    kept = [_record(number, codes) for number in range(RECORDS)]
    labelled = [{**_record(0, codes), "label": _code(codes)} for _ in range(SET_ASIDE)]
    untexted = [{**_record(0, codes), "text": {"x": _code(codes)}} for _ in range(SET_ASIDE)]
    broken = ['{"text": "' + _code(codes) for _ in range(SET_ASIDE)]
    lines = [json.dumps(record) for record in (*kept, *labelled, *untexted)]
    (folder / "private.jsonl").write_text("\n".join([*lines, *broken]))
    torn = [f'"{_code(codes)},{_code(codes)}' for _ in range(SET_ASIDE)]
    (folder / "torn.csv").write_text("\n".join(["text,id", *torn]))
    public = [{"text": _letter(number), "label": _label(number)} for number in range(160)]
    (folder / "public.jsonl").write_text("\n".join(json.dumps(row) for row in public))
    (folder / "words.txt").write_text("\n".join(PUBLIC_WORDS))
    return Planted(folder, tuple(codes))


def public_base(planted: Planted) -> PublicDataSpec:
    """The smallest base that every method of the cohort runs on."""
    fields = {
        "name": BASE,
        "source": {"path": str(planted.folder / "public.jsonl")},
        "columns": {"labels": ["label"]},
        "language_model": {"settings": _MODEL},
        "conditional_generator": {"settings": _GENERATOR},
        "clusters": {"count": 4},
    }
    return PublicDataSpec.model_validate(fields)


def private_cohort(planted: Planted, **changes: Any) -> PrivateDatasetSpec:
    """A cohort whose methods predict privately, take medians, and train."""
    fields = {
        "name": COHORT,
        "source": {"path": str(planted.folder / "private.jsonl")},
        "columns": {"labels": ["label"], "id": "id"},
        "privacy_unit": {"column": "customer", "max_records": 1},
        "public_facts": {"labels": {"label": list(LABELS)}},
        "budget": {"epsilon": 60.0, "delta": 1e-5, "accepts_ex_post": True},
        "held_out_fraction": 0.25,
        "public_data": BASE,
        "cluster_histogram": {"budget_share": 0.1, "clusters_per_label": 2},
        "topic_histogram": {"noise_std": 10.0},
        "methods": [
            {"method": "mean_clustered", "budget_share": 0.3, "settings": _DECODING},
            {"method": "median_clustered", "settings": {**_DECODING, "matched_epsilon": 24.0}},
            {"method": "dp_fine_tuning", "budget_share": 0.3, "settings": _TRAINING},
        ],
        "evaluation": {"rows": 20, "reference_rows": 20, "references": False},
        **changes,
    }
    return PrivateDatasetSpec.model_validate(fields)


def torn_cohort(planted: Planted) -> PrivateDatasetSpec:
    """A cohort whose source cannot be parsed."""
    return private_cohort(
        planted,
        name=TORN,
        source={"path": str(planted.folder / "torn.csv")},
        columns={"id": "id"},
        privacy_unit={},
        public_facts={},
        cluster_histogram=None,
        topic_histogram=None,
        methods=[{"method": "mean_uniform", "settings": {**_DECODING, "batches_per_label": 1}}],
    )


def _record(number: int, codes: list[str]) -> dict[str, Any]:
    spread = " ".join(_code(codes) for _ in range(CANARIES_A_TEXT))
    return {
        "text": f"{_code(codes)}: I am upset that {_letter(number)} {spread}",
        "id": _code(codes),
        "customer": _code(codes),
        "label": _label(number),
    }


def _letter(number: int) -> str:
    body = _BODIES[_label(number)].format(number % 90 + 2)
    return f"Hello, {body}, {_CLOSINGS[number % len(_CLOSINGS)]}."


def _label(number: int) -> str:
    return LABELS[number % len(LABELS)]


def _code(codes: list[str]) -> str:
    """A new canary, noted down: letters and digits that no public text composes."""
    codes.append("".join(secrets.choice(_CODE_LETTERS) for _ in range(_CODE_CHARACTERS)))
    return codes[-1]
