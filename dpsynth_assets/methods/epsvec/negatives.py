"""The negative set: what the model writes from the fixed shots, its states, and the clip bounds.

Records are compared with these texts. All of it follows from public text and released shots.

Letters: Y labels, M negatives of a label, P public documents, L layers, d width.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dpsynth_assets.methods.epsvec.config import CLIP_QUANTILE, EpsVecConfig
from dpsynth_assets.methods.epsvec.shots import (
    FixedShots,
    public_seed,
    public_texts,
    write_texts,
)
from dpsynth_assets.methods.epsvec.states import StateReader, TextsByLabel
from dpsynth_assets.methods.inputs import ProgressCallback, PublicInputs
from dpsynth_assets.models.engines.protocol import Provenance

STATES_FILE = "negative_states.safetensors"
TEXTS_FILE = "negatives.json"


@dataclass(frozen=True, kw_only=True)
class Negatives:
    """Texts that records are compared with. Released, at no cost.

    Attributes:
        texts: Y lists of M texts.
        states: Y arrays (M, L, d) of their mean states.
        layers: The L layers.
        clip_bounds: (L,) bounds on the norm of one record's difference.
        model: Name of the model whose states these are.
    """

    texts: TextsByLabel = field(repr=False)
    states: tuple[np.ndarray, ...] = field(repr=False)
    layers: tuple[int, ...]
    clip_bounds: np.ndarray
    model: str

    def save(self, folder: Path) -> None:
        """Writes safetensors and JSON."""
        from safetensors.numpy import save_file

        tensors = {f"label_{y}": each.astype(np.float32) for y, each in enumerate(self.states)}
        tensors["clip_bounds"] = self.clip_bounds
        save_file(tensors, folder / STATES_FILE)
        facts = {"layers": self.layers, "model": self.model, "texts": self.texts}
        (folder / TEXTS_FILE).write_text(json.dumps(facts, ensure_ascii=False))

    @classmethod
    def load(cls, folder: Path) -> "Negatives":
        """Reads what `save` wrote."""
        from safetensors.numpy import load_file

        tensors: Mapping[str, np.ndarray] = load_file(folder / STATES_FILE)
        facts: dict[str, Any] = json.loads((folder / TEXTS_FILE).read_text())
        return cls(
            texts=tuple(tuple(texts) for texts in facts["texts"]),
            states=tuple(
                tensors[f"label_{y}"].astype(np.float64) for y in range(len(facts["texts"]))
            ),
            layers=tuple(facts["layers"]),
            clip_bounds=tensors["clip_bounds"],
            model=facts["model"],
        )


def make_negatives(
    reader: StateReader,
    shots: FixedShots,
    config: EpsVecConfig,
    public: PublicInputs,
    provenance: Provenance,
    progress: ProgressCallback,
) -> Negatives:
    """Writes negatives of each label, reads their states, and bounds differences by public text.

    Negatives are written from prompts as rows are; states are read behind one prompt of a label,
    that of the most voted for.

    Raises:
        ValueError: If a label got no text, or there is no public text to take bounds from.

    **Privacy** Reads nothing private; fixed shots are released. Bounds do not come from records:
    the paper's were tuned on them (errata B-003.6).

    **Source** EPSVec, section 4.1 and Algorithm 2, line 3.
    """
    seed = public_seed(public.seed, "negatives")
    texts = write_texts(
        reader.engine,
        reader.scaffold,
        shots_of=lambda label, rows: shots.drawn(
            label, rows, config, public_seed(seed, "prompts", label)
        ),
        count=config.negatives,
        config=config,
        seed=seed,
        provenance=provenance,
        progress=lambda share, message: progress(0.6 * share, message),
    )  # [epsvec A2:L3]
    if not all(texts):
        raise ValueError(
            "Expected negatives of every label, got only blank texts for one. Raise negatives."
        )
    states = tuple(
        reader.read(label, each, provenance=provenance) for label, each in enumerate(texts)
    )
    progress(0.8, "computing clip bounds from public text")
    return Negatives(
        texts=texts,
        states=states,
        layers=reader.layers,
        clip_bounds=public_clip_bounds(reader, states, config, public, provenance),
        model=reader.engine.name,
    )


def public_clip_bounds(
    reader: StateReader,
    states: Sequence[np.ndarray],
    config: EpsVecConfig,
    public: PublicInputs,
    provenance: Provenance,
) -> np.ndarray:
    """Quantile, over public documents, of the norm of a record's difference: (L,) > 0.

    Documents take turns in standing behind the prompts of all labels, as if each were a record.
    """
    documents = public_texts(public, "clip bounds", config.clip_documents)
    norms = []
    for label, negatives in enumerate(states):
        texts = documents[label :: len(states)]
        if texts:
            rows = references(negatives, [str(row) for row in range(len(texts))], "", config)
            read = reader.read(label, texts, provenance=provenance)
            norms.append(np.linalg.norm(read - rows, axis=2))
    bounds: np.ndarray = np.quantile(np.concatenate(norms), CLIP_QUANTILE, axis=0)
    if not (bounds > 0).all():
        raise ValueError(
            "Expected public text that differs from negatives at every layer, got none. Name other "
            "public text in the base."
        )
    return bounds


def references(
    states: np.ndarray, record_ids: Sequence[str], salt: str, config: EpsVecConfig
) -> np.ndarray:
    """Returns what is subtracted from the states of each record, (N, L, d).

    Args:
        states: (M, L, d) of the negatives of the records' label.
        record_ids: N ids.
        salt: Public key of the pairing.
        config: Says how records are paired.

    **Privacy** A record's negative is chosen by a hash of its own id. Were records and negatives
    paired by their places, one record less would give all later ones other partners.
    """
    if config.pairing == "mean":
        return np.broadcast_to(states.mean(axis=0), (len(record_ids), *states.shape[1:]))
    return states[[_partner(record_id, salt, len(states)) for record_id in record_ids]]


def _partner(record_id: str, salt: str, negatives: int) -> int:
    key = hashlib.blake2b(salt.encode()).digest()
    digest = hashlib.blake2b(record_id.encode(), key=key, person=b"epsvec pairs").digest()
    return int.from_bytes(digest[:16], "big") % negatives
