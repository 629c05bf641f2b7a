"""Invented sources full of canaries, and the cohort that is run on them in a rehearsal."""

import json
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dpsynth_assets.datasets import PrivateDatasetSpec, PublicDataSpec
from dpsynth_assets.methods.registry import REGISTRY
from dpsynth_assets_tests.tiny_models import write_generator, write_language_model

COHORT, SECRET_COHORT, TORN, BASE = "rehearsal", "secret_rehearsal", "torn", "rehearsal_base"
LABELS = ("billing", "delivery")
PUBLIC_WORDS = ("regards", "parcel", "invoice", "shows too much")
"""Words that a corpus is likely to contain, in a list of canaries that closes its gate."""

BUDGET = {"epsilon": 200.0, "delta": 1e-5, "accepts_ex_post": True, "rounds": 2}
RECORDS = 100
FACTS = {"labels": {"label": list(LABELS)}, "records": RECORDS}
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
_DECODING = {
    "expected_batch_size": 24,
    "max_batches": 2,
    "max_document_tokens": 30,
    "max_example_tokens": 40,
    "min_tokens_for_new_document": 8,
    "temperature": 0.6,  # Buys fewer tokens, which take most of the time.
}
_TRAINING = {"steps": 2, "sampling_probability": 0.1, "rows": 20, "max_document_tokens": 30}
_UNIFORM = {**_DECODING, "batches_per_label": 1}
_EVOLUTION = {
    "iterations": 2,
    "population": 8,
    "variations": 3,
    "max_new_tokens": 16,
    "rows": 10,
}
_STEERING = {
    "candidates": 8,
    "negatives": 8,
    "clip_documents": 10,
    "max_document_tokens": 24,
    "max_new_tokens": 16,
    "rows": 10,
    "layers": [0],
}
_SETTINGS: dict[str, dict[str, Any]] = {
    "mean_uniform": _UNIFORM,
    "mean_svt": {**_UNIFORM, "min_tokens_for_new_document": 2, "max_tokens_per_batch": 40},
    "mean_clustered": _DECODING,
    "median_clustered": {**_DECODING, "matched_epsilon": 24.0},
    "invisible_ink": {**_UNIFORM, "expected_batch_size": 4},
    "dp_fine_tuning": {**_TRAINING, "architecture": "decoder_only"},
    "ctcl": _TRAINING,
    "resampled": {"corpus": "dp_fine_tuning", "rows": 10},
    "downstream_fine_tuning": {"steps": 2, "sampling_probability": 0.1},
    "aug_pe": _EVOLUTION,
    "aug_pe_from_corpus": {**_EVOLUTION, "corpus": "epsvec"},
    "mean_svt_on_generator": {
        **_UNIFORM,
        "generator": "dp_fine_tuning",
        "min_tokens_for_new_document": 2,
        "max_tokens_per_batch": 40,
    },
    "epsvec": _STEERING,
    "epsvec_on_generator": {**_STEERING, "generator": "dp_fine_tuning"},
}
"""Every method that is (ε, δ)-DP or ex-post, at its smallest; `secpe` has a cohort of its own."""


def rehearsed() -> dict[str, dict[str, Any]]:
    """Settings of every method of that cohort; a new one runs at its own defaults."""
    return {name: _SETTINGS.get(name, {}) for name in REGISTRY if name != "secpe"}


@dataclass(frozen=True)
class Planted:
    """Where the sources are, and what must be found nowhere else."""

    folder: Path
    canaries: tuple[str, ...] = field(repr=False)


def plant(folder: Path) -> Planted:
    """Writes a public base, three private sources and a torn one; private fields hold canaries.

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
    for name in ("secrets", "unread"):  # Two budgets over one source would be refused.
        others = [json.dumps(_record(number, codes)) for number in range(RECORDS)]
        (folder / f"{name}.jsonl").write_text("\n".join(others))
    torn = [f'"{_code(codes)},{_code(codes)}' for _ in range(SET_ASIDE)]
    (folder / "torn.csv").write_text("\n".join(["text,id", *torn]))
    public = [{"text": _letter(number), "label": _label(number)} for number in range(160)]
    (folder / "public.jsonl").write_text("\n".join(json.dumps(row) for row in public))
    texts = [row["text"] for row in public]
    write_language_model(folder / "model", texts)
    write_generator(folder / "generator", texts)
    (folder / "words.txt").write_text("\n".join(PUBLIC_WORDS))
    return Planted(folder, tuple(codes))


def public_base(planted: Planted) -> PublicDataSpec:
    """The smallest base that every method of the cohort runs on."""
    fields = {
        "name": BASE,
        "source": {"path": str(planted.folder / "public.jsonl")},
        "columns": {"labels": ["label"]},
        "language_model": {"kind": "pretrained", "model": str(planted.folder / "model")},
        "conditional_generator": {"kind": "pretrained", "model": str(planted.folder / "generator")},
        "clusters": {"count": 4},
    }
    return PublicDataSpec.model_validate(fields)


def private_cohort(planted: Planted, **changes: Any) -> PrivateDatasetSpec:
    """A cohort with every method that protects records. Its budget allows two releases of each."""
    fields = {
        "name": COHORT,
        "source": {"path": str(planted.folder / "private.jsonl"), "max_set_aside": 0.9},
        "columns": {"labels": ["label"], "id": "id"},
        "privacy_unit": {"column": "customer", "max_records": 1},
        "public_facts": {**FACTS, "records": RECORDS + 3 * SET_ASIDE},
        "budget": BUDGET,
        "held_out_fraction": 0.25,
        "public_data": BASE,
        "cluster_histogram": {"budget_share": 0.1, "clusters_per_label": 2},
        "topic_histogram": {"noise_std": 10.0},
        "methods": [{"method": name, "settings": given} for name, given in rehearsed().items()],
        "evaluation": {"rows": 20, "reference_rows": 10},
        **changes,
    }
    return PrivateDatasetSpec.model_validate(fields)


def secret_cohort(planted: Planted) -> PrivateDatasetSpec:
    """A cohort whose canaries are declared secrets: they are found, and listed in the store."""
    kind = {
        "name": "code",
        "detector": "regex",
        "pattern": f"[{_CODE_LETTERS}]{{{_CODE_CHARACTERS}}}",
        "max_records": 1,
        "posterior": 0.2,
        "prior": 0.01,
    }
    return private_cohort(
        planted,
        name=SECRET_COHORT,
        source={"path": str(planted.folder / "secrets.jsonl")},
        public_facts=FACTS,
        privacy_unit={},
        budget={"epsilon": 20.0, "delta": 1e-5, "accountant": "tight", "rounds": 2},
        cluster_histogram=None,
        topic_histogram=None,
        secrets={"planted": 4, "kinds": [kind]},
        methods=[
            {"method": "secpe", "budget_share": 0.4, "settings": {**_EVOLUTION, "clusters": 4}}
        ],
        evaluation={"rows": 20, "references": False},
    )


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
        methods=[{"method": "mean_uniform", "settings": _UNIFORM}],
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
