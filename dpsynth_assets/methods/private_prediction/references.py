"""Floor and ceiling: the same prompts with no private data, and with private data but no privacy.

Neither runs a mechanism, so both are sampled as one would without privacy: at temperature 1 among
the likeliest tokens. A method's own temperature makes a token cheap where many contexts are
averaged; one context alone writes worse at it, and neither floor nor ceiling would be one. The
floor costs nothing and may be released; the ceiling copies private text and must stay internal.
"""

from collections.abc import Sequence
from itertools import compress

import numpy as np

from dpsynth_assets.methods.base import CohortTerms
from dpsynth_assets.methods.inputs import (
    PrivateInputs,
    ProgressCallback,
    PublicInputs,
    label_indices,
)
from dpsynth_assets.methods.private_prediction.config import PrivatePredictionConfig
from dpsynth_assets.methods.private_prediction.corpus import corpus_rows
from dpsynth_assets.methods.private_prediction.decoding import (
    constraint_of,
    decoder_of,
    prompt_columns,
)
from dpsynth_assets.methods.stages import SyntheticCorpus
from dpsynth_assets.models.decoding import sample_documents
from dpsynth_assets.models.engines.protocol import Sampling
from dpsynth_assets.models.prompt_templates import TOP_K
from dpsynth_assets.models.row_rules import TextForm
from dpsynth_assets.privacy.guarantees import Cost, GuaranteeType, Release


def generate_public_only(
    config: PrivatePredictionConfig,
    terms: CohortTerms,
    public: PublicInputs,
    documents: int,
    progress: ProgressCallback,
) -> SyntheticCorpus:
    """Samples documents from each label's text.

    Args:
        config: Lengths, and how many of the likeliest tokens are drawn from.
        terms: Declared labels; documents are shared equally over them.
        public: Language model and seed.
        documents: Number of documents before blank ones are dropped.
        progress: Told the share done.

    **Privacy** Reads no private record: the floor that a private corpus must beat.
    """
    labels = [index % len(terms.labels) for index in range(documents)]
    return _sample(config, terms, public, labels, [[]] * documents, progress)


def generate_non_private(
    config: PrivatePredictionConfig,
    terms: CohortTerms,
    private: PrivateInputs,
    public: PublicInputs,
    documents: int,
    progress: ProgressCallback,
    examples: int = 1,
) -> Release[SyntheticCorpus]:
    """Samples each document after real records of one label: the ceiling, with no privacy at all.

    Args:
        config: Lengths, and how many of the likeliest tokens are drawn from.
        terms: Declared labels.
        private: The records.
        public: Language model and seed.
        documents: Number of documents before blank ones are dropped.
        progress: Told the share done.
        examples: Records in a prompt; fewer where a label has fewer.

    Returns:
        A corpus of guarantee NONE. Internal: its rows may repeat private text.

    **Privacy** None (ε = ∞). Never release, never feed to a released asset.
    """
    labels = label_indices(private.records["label"], terms.labels)
    known = np.flatnonzero(labels >= 0)
    draw = np.random.default_rng(public.seed)
    chosen = draw.choice(known, size=documents, replace=documents > len(known)).tolist()
    texts = private.records["text"]
    of_label = {label: np.flatnonzero(labels == label) for label in set(labels[known].tolist())}

    def shown(row: int) -> list[str]:
        """Texts of a record and of others with its label."""
        others = of_label[int(labels[row])]
        others = others[others != row]
        further = draw.choice(others, size=min(examples - 1, len(others)), replace=False)
        return [texts[place] for place in (*further.tolist(), row)]

    corpus = _sample(
        config,
        terms,
        public,
        [int(labels[row]) for row in chosen],
        [shown(row) for row in chosen],
        progress,
    )
    return Release(value=corpus, cost=Cost(guarantee=GuaranteeType.NONE))


def _sample(
    config: PrivatePredictionConfig,
    terms: CohortTerms,
    public: PublicInputs,
    labels: Sequence[int],
    examples: Sequence[Sequence[str]],
    progress: ProgressCallback,
) -> SyntheticCorpus:
    model = public.language_model
    decoder, most = decoder_of(terms, model), max(map(len, examples), default=0)
    # Public numbers decide what fits: no refusal may tell how long a record is.
    columns = prompt_columns(model, terms.label_texts, most, config.max_example_tokens)
    decoder.require_room(columns + config.max_document_tokens)
    written = [
        model.prompt_ids(terms.label_texts[label], list(texts), config.max_example_tokens)
        for label, texts in zip(labels, examples, strict=True)
    ]
    constraint = constraint_of(terms, model)
    sampled = sample_documents(
        decoder,
        model,
        written,
        Sampling(
            top_k=config.support or TOP_K,
            max_new_tokens=config.max_document_tokens,
            seed=public.seed,
        ),
        progress=lambda share: progress(share, f"{share:.0%} of {len(labels)} documents"),
        texts=None if constraint is None else [constraint.open() for _ in labels],
    )
    if constraint is not None:
        whole = [constraint.is_followed(model.decode(tokens)) for tokens in sampled]
        labels, sampled = list(compress(labels, whole)), list(compress(sampled, whole))
    rows = corpus_rows(
        model,
        TextForm.of(terms.json_schema, terms.prompts, terms.label_texts),
        longest=config.max_document_tokens,
        tokens=sampled,
        labels=[terms.labels[label] for label in labels],
        batches=[None] * len(sampled),
        clusters=[None] * len(sampled),
    )
    facts = {"rows": len(rows), "tokens": int(rows["n_tokens"].sum()), "documents": len(examples)}
    return SyntheticCorpus(rows=rows, facts=facts)
