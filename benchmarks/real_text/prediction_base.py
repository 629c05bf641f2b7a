"""The public side of the prediction table: documents, invented records, language model, centres.

Public are the corpora that are nobody's private corpus in the table: Brown, ABC news, WikiText-2.
They are cut at sentences into pieces of the private texts' length. Records in the form of the movie
corpus are invented from them, for a model that has never seen the form cannot write it. Everything
is made once and kept in a folder: a second run with the same settings reads it back.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import polars as pl

from dpsynth_assets.clustering import fit_centers
from dpsynth_assets.models.language_model import LanguageModel, load_language_model
from dpsynth_assets.models.language_model_training import (
    FACTS_FILE,
    TrainingSettings,
    train_language_model,
)
from dpsynth_assets.models.text_embedder import TextEmbedder

TEXT_CHARACTERS = 240
"""Greatest length of public pieces and of private texts, a public constant."""

CORPORA = ("brown", "abc_news", "wikitext2")
BLOCK = 12
"""Neighbours in a corpus are mostly of one article: a group for few-shot sequences."""

INVENTED_RECORDS = 6_000
CENTER_DOCUMENTS = 3_000
CENTERS = 48
_NAME = re.compile(r"\b[A-Z][a-z]{2,} [A-Z][a-z]{2,}\b")
_AS_WRITTEN = {
    " @-@ ": "-", " @,@ ": ",", " @.@ ": ".", " ,": ",", " .": ".", " ;": ";", " :": ":",
    " 's": "'s", "( ": "(", " )": ")", "`` ": '"', "``": '"', " ''": '"', "''": '"',
}  # fmt: skip
"""Brown and WikiText come tokenized; private text does not."""
_GENRES = ("Drama", "Comedy", "Western", "Horror", "Musical", "Romance", "Crime", "War", "Thriller")


def pieces(text: str, characters: int) -> Iterator[str]:
    """Cuts a document at sentence ends into parts of at most `characters`; long sentences go."""
    part = ""
    for sentence in re.split(r"(?<=[.!?]) +", text.strip()):
        joined = f"{part} {sentence}".strip()
        if len(joined) > characters:
            if part:
                yield part
            joined = sentence if len(sentence) <= characters else ""
        part = joined
    if part:
        yield part


def _as_written(text: str) -> str:
    for tokenized, plain in _AS_WRITTEN.items():
        text = text.replace(tokenized, plain)
    return text


def public_documents(data: Path) -> pl.DataFrame:
    """Pieces of every public corpus and the invented records: `text`, `label`, `group`."""
    prose = pl.concat([_prose(data, name) for name in CORPORA])
    return pl.concat([prose, _invented_records(prose, Random(0))])


def _prose(data: Path, name: str) -> pl.DataFrame:
    corpus = pl.read_parquet(data / f"{name}.parquet")
    labels = corpus["category"] if "category" in corpus.columns else [""] * corpus.height
    rows = [
        (piece, label.replace("_", " "), f"{name} {row // BLOCK}")
        for row, (text, label) in enumerate(zip(corpus["text"], labels, strict=True))
        for piece in pieces(_as_written(text), TEXT_CHARACTERS)
        if len(piece) > 40 and "<unk>" not in piece
    ]
    return pl.DataFrame(rows, schema=["text", "label", "group"], orient="row")


def _invented_records(prose: pl.DataFrame, random: Random) -> pl.DataFrame:
    """JSON records with the movie corpus's fields; names and extracts come from public prose."""
    texts = prose["text"].to_list()
    names = sorted({name for text in texts for name in _NAME.findall(text)})
    records = [_invented(random.choice(texts), names, random) for _ in range(INVENTED_RECORDS)]
    groups = [f"records {row // BLOCK}" for row in range(INVENTED_RECORDS)]
    return pl.DataFrame({"text": records, "label": "", "group": groups})


def _invented(extract: str, names: Sequence[str], random: Random) -> str:
    words = [word for word in re.findall(r"[a-z]{4,}", extract.lower()) if word.isascii()]
    title = " ".join(["The", *random.sample(words, min(2, len(words)))]).title()
    record = {
        "title": title,
        "year": random.randint(1900, 2023),
        "cast": random.sample(names, random.randint(1, 4)),
        "genres": random.sample(_GENRES, random.randint(1, 2)),
        "href": title.replace(" ", "_"),
        "extract": f"{title} is a {random.choice(_GENRES).lower()} film. {extract[:120]}",
    }
    return json.dumps(record, ensure_ascii=False, separators=(",", ":"))


def trained_model(
    documents: pl.DataFrame, folder: Path, settings: TrainingSettings, device: str
) -> tuple[LanguageModel, dict[str, Any]]:
    """Trains the language model, or reads back the one trained with the same settings."""
    declared = folder / "settings.json"
    wanted = settings.model_dump_json(exclude={"threads", "device"})
    if not (folder / FACTS_FILE).exists() or declared.read_text() != wanted:
        folder.mkdir(parents=True, exist_ok=True)
        train_language_model(documents, folder, settings, _say)
        declared.write_text(wanted)
    facts = json.loads((folder / FACTS_FILE).read_text())
    return load_language_model(folder, device=device), facts


def public_centers(documents: pl.DataFrame, embedder: TextEmbedder, folder: Path) -> np.ndarray:
    """Centres of k-means over a sample of the public pieces, kept in `folder`."""
    file = folder / "centers.npy"
    if not file.exists():
        prose = documents.filter(~pl.col("group").str.starts_with("records"))
        sample = prose.sample(min(CENTER_DOCUMENTS, prose.height), seed=0)["text"].to_list()
        np.save(file, fit_centers(embedder.embed(sample, _say), clusters=CENTERS, seed=0))
    return np.load(file, allow_pickle=False)


def embedded_once(texts: Sequence[str], embedder: TextEmbedder, stem: Path) -> np.ndarray:
    """Embeds texts, or reads back what an earlier run made of the same texts in the same order."""
    content = hashlib.sha256("\0".join(texts).encode("utf-8", "surrogatepass")).hexdigest()
    file = stem.with_name(f"{stem.name}_{content[:12]}.npy")
    if not file.exists():
        np.save(file, embedder.embed(texts, _say))
    return np.load(file, allow_pickle=False)


_LAST = [-1.0]


def _say(share: float, message: str) -> None:
    """Prints every tenth of the way."""
    if not 0 <= share - _LAST[0] < 0.1:
        print(f"  {share:4.0%} {message}", flush=True)
        _LAST[0] = share


__all__ = ["embedded_once", "pieces", "public_centers", "public_documents", "trained_model"]
