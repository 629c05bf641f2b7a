"""Post-generation resampling: another method's rows, chosen to match the released histogram."""

from typing import Any, ClassVar

import numpy as np

from dpsynth_assets.methods.base import (
    CohortTerms,
    MethodPlan,
    PrivateInputs,
    ProgressCallback,
    PublicInputs,
    SyntheticCorpus,
)
from dpsynth_assets.methods.fine_tuning.config import ResampledConfig
from dpsynth_assets.methods.fine_tuning.generators import required
from dpsynth_assets.methods.fine_tuning.resampling import choose_rows, quotas
from dpsynth_assets.methods.fine_tuning.writing import released_histogram
from dpsynth_assets.methods.staged import Checkpoint, Stage, StagedMethod, StageRelease
from dpsynth_assets.privacy.events import POST_PROCESSING
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.release import Release


class Resampled(StagedMethod):
    """Yu et al. 2024: no release of its own; rows of a published corpus, by topic."""

    name: ClassVar[str] = "resampled"
    title: ClassVar[str] = "Resampled by topic (Yu et al. 2024)"
    paper: ClassVar[str] = (
        "Yu et al. 2024, Privacy-preserving instructions for aligning large language models"
    )
    guarantee = GuaranteeType.DP
    config_type = ResampledConfig
    spends = False

    def uses_topics(self, config: Any) -> bool:
        """The released histogram says how many rows of each topic are kept."""
        del config
        return True

    def builds_on(self, config: Any) -> tuple[str, ...]:
        """The corpus that rows are chosen from."""
        return (config.corpus,)

    def public_inputs(self, config: Any) -> frozenset[str]:
        """Topics of rows come from the public topic model."""
        del config
        return frozenset({"topic_model", "text_embedder"})

    def plan(self, config: Any, terms: CohortTerms, *, target_epsilon: float) -> MethodPlan:
        """Plans no charge: everything it reads was released or is public."""
        del terms, target_epsilon
        return MethodPlan(
            guarantee=GuaranteeType.DP,
            event=POST_PROCESSING,
            parameters=config.model_dump(mode="json")
            | {"noise": f"none of its own: rows of {config.corpus} by the topic histogram"},
            rows_estimate=config.rows,
        )

    def stages(self, config: Any, terms: CohortTerms) -> tuple[Stage, ...]:
        """No paid stage."""
        del config, terms
        return ()

    def release_stage(
        self,
        stage: str,
        plan: MethodPlan,
        config: Any,
        terms: CohortTerms,
        private: PrivateInputs,
        public: PublicInputs,
        checkpoint: Checkpoint,
        progress: ProgressCallback,
    ) -> Release[StageRelease]:
        """Refuses: there is nothing to release.

        Raises:
            ValueError: Always.
        """
        del plan, config, terms, private, public, checkpoint, progress
        raise ValueError(f"Expected no paid stage of {self.name}, got {stage!r}.")

    def write(
        self,
        plan: MethodPlan,
        config: Any,
        terms: CohortTerms,
        public: PublicInputs,
        rows: int,
        progress: ProgressCallback,
    ) -> SyntheticCorpus:
        """Keeps rows of the other corpus so that labels and topics follow the histogram.

        **Privacy** Post-processing of a published corpus and of a released histogram; a row's topic
        is read off its synthetic text.

        **Source** Yu et al. 2024, Algorithm 1, as CTCL's baseline "+ Resample" (section 4.1.2):
        each cell gets its share of the rows, drawn without replacement. Cells that run out pass
        what they lack to the others.

        Raises:
            ValueError: The corpus is not there, or holds no more rows than are asked for.
        """
        import polars as pl

        del plan
        corpus = _other_corpus(config, public)
        histogram = released_histogram(public, terms.labels)
        progress(0.0, f"topics of {corpus.height} rows")
        topic_model = required(public.topic_model, "topic_model")
        embedder = required(public.text_embedder, "text_embedder")
        topics = topic_model.assign(embedder.embed(corpus["text"].to_list(), public=True))
        index = {label: place for place, label in enumerate(terms.labels)}
        labels = np.array([index.get(label, -1) for label in corpus["label"].to_list()])
        declared = np.flatnonzero(labels >= 0)
        if rows >= len(declared):  # Whole, it would be the other corpus under another name.
            raise ValueError(
                f"Expected fewer rows than the corpus of {config.corpus} holds "
                f"({len(declared)}), to choose among them, got {rows}. Ask for fewer, or write "
                f"more rows of {config.corpus}: both are free."
            )
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


def _other_corpus(config: ResampledConfig, public: PublicInputs) -> Any:
    if config.corpus not in public.corpora:
        raise ValueError(
            f"Expected the published corpus of {config.corpus}, got none. Publish it first, or "
            "name another method's folder as `corpus`."
        )
    return public.corpora[config.corpus]


def _distance(counts: np.ndarray, shares: np.ndarray) -> float:
    """Total variation distance between the corpus's histogram and the released one."""
    return round(float(np.abs(counts / max(1, counts.sum()) - shares).sum() / 2.0), 4)
