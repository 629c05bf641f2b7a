"""Post-generation resampling: another method's rows, chosen to match the released histogram.

Letters: M cells (label and topic), S rows of a corpus, N rows kept.
"""

import numpy as np
import polars as pl

from dpsynth_assets.methods.base import Method, planned
from dpsynth_assets.methods.capabilities import Advice
from dpsynth_assets.methods.fine_tuning.config import ResampledConfig
from dpsynth_assets.methods.fine_tuning.writing import released_histogram
from dpsynth_assets.methods.inputs import (
    ProgressCallback,
    PublicInputs,
    label_indices,
    rows_behind,
)
from dpsynth_assets.methods.stages import MethodPlan, Stage, SyntheticCorpus, Writing
from dpsynth_assets.methods.work import PublicSizes, Work

NEGLIGIBLE = 1e-12
"""A share of the whole below this is none."""


class Resampled(Method[ResampledConfig]):
    """Yu et al. 2024: no release of its own; rows of a published corpus, by topic."""

    name = "resampled"
    title = "Resampled by topic (Yu et al. 2024)"
    paper = "Yu et al. 2024, Privacy-preserving instructions for aligning large language models"
    arxiv = "2402.13659"
    config_type = ResampledConfig
    advice = Advice(unadvised="it chooses rows of another method's corpus and writes no rows")
    chooses_rows = True

    @property
    def corpora(self) -> tuple[str, ...]:
        """The corpus whose rows it keeps."""
        return (self.config.corpus,)

    def writing(self) -> Writing:
        """Rows follow the released histogram; their topics come from the public topic model."""
        return Writing(
            reads=frozenset({"topic_model", "text_embedder"}),
            rows=self.config.rows,
            follows_topics=True,
            work=self.work,
            write=self.write,
        )

    def work(self, _plan: MethodPlan, sizes: PublicSizes) -> Work:
        """Counts the embeddings of the rows that are chosen from: twice as many as are kept."""
        return Work(embedded=2 * self.config.rows * sizes.text_tokens)

    def plan(self, _target_epsilon: float) -> MethodPlan:
        """Plans no charge: everything it reads was released or is public."""
        noise = f"none of its own: rows of {self.config.corpus} by the topic histogram"
        return planned(self, {}, {**self.config.stated(), "noise": noise})

    def stages(self) -> tuple[Stage, ...]:
        """No stage."""
        return ()

    def write(self, public: PublicInputs, rows: int, progress: ProgressCallback) -> SyntheticCorpus:
        """Keeps rows of the other corpus so that labels and topics follow the histogram.

        **Privacy** Post-processing of a published corpus and of a released histogram; a row's topic
        is read off its synthetic text.

        **Source** Yu et al. 2024, Algorithm 1, as CTCL's baseline "+ Resample" (section 4.1.2):
        each cell gets its share of the rows, drawn without replacement. Cells that run out pass
        what they lack to the others.

        Raises:
            ValueError: The corpus is not there, or holds no more rows than are asked for.
        """
        corpus = rows_behind(self.config.corpus, public)
        histogram = released_histogram(public, self.terms.labels)
        progress(0.0, f"topics of {corpus.height} rows")
        labels = label_indices(corpus["label"], self.terms.labels)
        topics = _topics(corpus, public)
        declared = np.flatnonzero(labels >= 0)
        self._refuse_no_choice(rows, len(declared))
        cells = (labels * histogram.bins + topics)[declared]
        shares = histogram.proportions().ravel()
        available = np.bincount(cells, minlength=len(shares))
        kept = quotas(shares, available, rows)
        chosen = declared[choose_rows(cells, kept, public.seed)]
        selected = corpus[chosen.tolist()].select(
            "text", "label", pl.Series("topic", topics[chosen].astype(np.int64))
        )
        progress(1.0, f"{selected.height} of {corpus.height} rows kept")
        return SyntheticCorpus(
            rows=selected,
            facts={
                "rows": selected.height,
                "rows_to_choose_from": corpus.height,
                "distance_before": _distance(available, shares),
                "distance_after": _distance(kept, shares),
            },
        )

    def _refuse_no_choice(self, rows: int, available: int) -> None:
        """Refuses to keep all rows: whole, it would be the other corpus under another name."""
        if rows >= available:
            name = self.config.corpus
            raise ValueError(
                f"Expected fewer rows than the corpus of {name} holds ({available}), to choose "
                f"among them, got {rows}. Ask for fewer, or write more rows of {name}; both cost "
                "no ε."
            )


def quotas(shares: np.ndarray, available: np.ndarray, rows: int) -> np.ndarray:
    """Shares out N rows over cells in proportion, where no cell gives more rows than it has.

    What a cell lacks goes to the others in their own proportions: the largest λ x share, cut to
    what is there, that sums to N. Cells of share zero are used only where all others are empty.

    Args:
        shares: float (M,), non-negative, of the released histogram.
        available: int (M,), rows of the corpus in each cell.
        rows: N, at most the sum of `available`.

    Returns:
        int64 (M,), summing to N.
    """
    shares = np.where(shares > NEGLIGIBLE * shares.sum(), shares, 0.0)
    wanted = np.minimum(_water_level(shares, available, rows) * shares, available)
    kept = np.minimum(np.floor(wanted).astype(np.int64), available)
    reachable = min(rows, int(available[shares > 0].sum()))
    open_cells = np.flatnonzero((shares > 0) & (kept < available))
    by_remainder = np.lexsort((-shares[open_cells], (kept - wanted)[open_cells]))
    kept[open_cells[by_remainder[: reachable - int(kept.sum())]]] += 1
    for cell in np.flatnonzero(available > kept):  # Only where every wanted cell is used up.
        kept[cell] += min(int(available[cell] - kept[cell]), rows - int(kept.sum()))
    return kept


def _water_level(shares: np.ndarray, available: np.ndarray, rows: int) -> float:
    """Finds λ with Σ min(λ share, available) = N by filling cells in the order they run dry."""
    used = np.flatnonzero((shares > 0) & (available > 0))
    dry = available[used] / shares[used]
    order = used[np.argsort(dry, kind="stable")]
    open_shares = np.cumsum(shares[order][::-1])[::-1]  # Of a cell and those after it.
    left = float(rows)
    for cell, open_share in zip(order, open_shares, strict=True):
        level = left / open_share
        if level * shares[cell] <= available[cell]:
            return level
        left -= float(available[cell])
    return float(dry.max(initial=0.0))


def choose_rows(cells: np.ndarray, kept: np.ndarray, seed: int) -> np.ndarray:
    """Draws the rows to keep: of each cell its quota, uniformly and without replacement.

    Args:
        cells: int (S,), cell of each row in [0, M).
        kept: int (M,), rows to keep of each cell.
        seed: Public seed.

    Returns:
        int64 (N,) indices of rows, in their order in the corpus.
    """
    order = np.random.default_rng(seed).permutation(len(cells))
    ordered = cells[order]
    by_cell = np.argsort(ordered, kind="stable")
    sizes = np.bincount(cells, minlength=len(kept))
    ranks = np.arange(len(cells)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    rows = order[by_cell]
    return np.sort(rows[ranks < kept[cells[rows]]])


def _topics(corpus: pl.DataFrame, public: PublicInputs) -> np.ndarray:
    """Topic of each row, read off its synthetic text."""
    embedder = public.required("text_embedder")
    embeddings = embedder.embed(corpus["text"].to_list(), public=True)
    return np.asarray(public.required("topic_model").assign(embeddings))


def _distance(counts: np.ndarray, shares: np.ndarray) -> float:
    """Total variation distance between the corpus's histogram and the released one."""
    return round(float(np.abs(counts / max(1, counts.sum()) - shares).sum() / 2.0), 4)
