"""Draws few-shot training sequences: whole documents of one label, nearest groups first."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dpsynth_assets.models.document_format import EMBEDDED, TokenCodec

if TYPE_CHECKING:
    import polars as pl

DOCUMENTS_PER_GROUP = 12


@dataclass(frozen=True)
class EncodedDocuments:
    """Documents as tokens, with what decides which may stand in one prompt.

    Attributes:
        tokens: One int64 array a document: opening, text, end token.
        labels: Label of each document.
        groups: Group of each document; `a/b` lies within `a`.
        begin_token_id: First token of every sequence.
    """

    tokens: tuple[np.ndarray, ...]
    labels: tuple[str, ...]
    groups: tuple[str, ...]
    begin_token_id: int

    def split(
        self, held_out_share: float, seed: int
    ) -> tuple["EncodedDocuments", "EncodedDocuments"]:
        """Separates whole outermost groups, about `held_out_share` of them (at least one)."""
        outer = sorted({group.split("/")[0] for group in self.groups})
        order = np.random.default_rng(seed).permutation(len(outer))
        count = max(1, round(held_out_share * len(outer)))
        chosen = {outer[index] for index in order[:count]}
        inside = [group.split("/")[0] in chosen for group in self.groups]
        return self._subset(inside, wanted=False), self._subset(inside, wanted=True)

    def _subset(self, inside: Sequence[bool], *, wanted: bool) -> "EncodedDocuments":
        keep = [index for index, value in enumerate(inside) if value is wanted]
        return EncodedDocuments(
            tokens=tuple(self.tokens[index] for index in keep),
            labels=tuple(self.labels[index] for index in keep),
            groups=tuple(self.groups[index] for index in keep),
            begin_token_id=self.begin_token_id,
        )


def encode_documents(
    codec: TokenCodec, documents: "pl.DataFrame", max_document_tokens: int, seed: int
) -> EncodedDocuments:
    """Encodes documents in the embedded format, each cut to `max_document_tokens`."""
    columns = documents.columns
    labels = documents["label"].to_list() if "label" in columns else [""] * documents.height
    texts = documents["text"].to_list()
    groups = documents["group"].to_list() if "group" in columns else similar_groups(texts, seed)
    tokens = tuple(
        np.asarray(EMBEDDED.document_ids(codec, label, text, max_document_tokens), dtype=np.int64)
        for label, text in zip(labels, texts, strict=True)
    )
    return EncodedDocuments(tokens, tuple(labels), tuple(groups), int(codec.begin_token_id or 0))


def similar_groups(texts: Sequence[str], seed: int) -> list[str]:
    """Groups documents by the words they share: k-means on hashed, reduced TF-IDF vectors."""
    from sklearn.cluster import MiniBatchKMeans
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectors = TfidfVectorizer(max_features=20_000, sublinear_tf=True, stop_words="english")
    matrix = vectors.fit_transform([text[:1500] for text in texts])
    reduced = TruncatedSVD(min(64, matrix.shape[1] - 1), random_state=seed).fit_transform(matrix)
    count = max(2, min(2000, len(texts) // DOCUMENTS_PER_GROUP))
    kmeans = MiniBatchKMeans(count, random_state=seed, n_init=1, batch_size=4096, max_iter=30)
    return [str(group) for group in kmeans.fit_predict(reduced)]


class PromptSampler:
    """Fills sequences with documents of one label, from the anchor's group outwards."""

    def __init__(self, documents: EncodedDocuments, group_share: float, seed: int) -> None:
        self._documents = documents
        self._group_share = group_share
        self._random = np.random.default_rng(seed)
        self._order = np.empty(0, dtype=np.int64)
        self._members: dict[tuple[str, ...], list[int]] = defaultdict(list)
        for index in range(len(documents.tokens)):
            for key in self._keys(index):
                self._members[key].append(index)

    def rows(self, count: int, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Draws full sequences; the last document of each is cut.

        Returns:
            Token ids [count, length], and the position of each token's document in its sequence
            [count, length].
        """
        drawn = [self._row(length) for _ in range(count)]
        return np.stack([ids for ids, _ in drawn]), np.stack([place for _, place in drawn])

    def _row(self, length: int) -> tuple[np.ndarray, np.ndarray]:
        ids = [np.array([self._documents.begin_token_id], dtype=np.int64)]
        places = [np.zeros(1, dtype=np.int64)]
        total, place = 1, 0
        while total < length:
            for index in self._neighbours(self._next_anchor()):
                tokens = self._documents.tokens[index]
                ids.append(tokens)
                places.append(np.full(len(tokens), place))
                total, place = total + len(tokens), place + 1
                if total >= length:
                    break
        return np.concatenate(ids)[:length], np.concatenate(places)[:length]

    def _next_anchor(self) -> int:
        """Every document is an anchor once before any is twice."""
        if not len(self._order):
            self._order = self._random.permutation(len(self._documents.tokens))
        anchor, self._order = int(self._order[0]), self._order[1:]
        return anchor

    def _keys(self, index: int) -> list[tuple[str, ...]]:
        """Pools a document belongs to, narrow to wide: its groups within its label, its label."""
        label, parts = self._documents.labels[index], self._documents.groups[index].split("/")
        return [(label, *parts[:depth]) for depth in range(len(parts), -1, -1)]

    def _neighbours(self, anchor: int) -> list[int]:
        """The anchor, then others of its label: near groups first, or at random."""
        keys = self._keys(anchor)
        start = 0 if self._random.random() < self._group_share else self._random.integers(len(keys))
        found = dict.fromkeys([anchor])
        for key in keys[int(start) :]:
            pool = self._members[key]
            chosen = self._random.permutation(len(pool))[:DOCUMENTS_PER_GROUP]
            found |= dict.fromkeys(pool[int(position)] for position in chosen)
        return list(found)
