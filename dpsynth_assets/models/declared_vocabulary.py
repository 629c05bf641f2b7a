"""Number of tokens of a declared language model, read without loading it."""

import json
from pathlib import Path

from dpsynth_assets.datasets.public_spec import LanguageModelSpec

SMOLLM2_VOCABULARY = 49_152
"""Tokens of SmolLM2-135M-Instruct, whose file's hash is pinned."""


def declared_vocabulary(declared: LanguageModelSpec | None) -> int | None:
    """Reads V, tokens of the vocabulary, from public declarations alone.

    Args:
        declared: The language model of a public base; None where none is declared.

    Returns:
        V: of smollm2 the number that its file has, of a folder of weights what its `config.json`
        says. None where nothing on this machine says it, as of an address on a hub.
    """
    if declared is None:
        return None
    if declared.kind == "smollm2":
        return SMOLLM2_VOCABULARY
    return _vocabulary_of_folder(Path(declared.model or "").expanduser())


def _vocabulary_of_folder(folder: Path) -> int | None:
    """Reads `vocab_size` of a folder in the transformers format, or of its text part."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        own = config.get("text_config") or config
        return int(own.get("vocab_size") or config["vocab_size"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
