"""Sizes of tables, their lines, and the tables of docs/benchmarks.md by name."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dpsynth_assets.datasets.evaluation_section import NextWordSettings
from dpsynth_assets.privacy.gaussian_dp import gaussian_epsilon
from dpsynth_assets.privacy.secret_protection import gaussian_budget

PRIOR = 1e-4
"""p: with what chance an attacker guesses a secret beforehand."""

OCCURRENCES = 6
"""m: most records that hold one secret word of `yelp_category_rating`, a declared constant."""

STEERED_LAYERS = (5, 11, 17, 23)
"""First of four neighbouring layers of SmolLM2's 30; 17 to 20 is the default of `epsvec`."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One line of a table: a registered method, or a reference.

    Attributes:
        title: Its name in the table.
        method: Name of a registered method, or of a reference.
        settings: Settings of the method, as in a dataset file.
        otherwise: Settings to take in turn instead of some, where the plan refuses those before.
        declared: Further fields of the dataset file.
        epsilon: Its own ε, where it is not the table's.
    """

    title: str
    method: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    otherwise: tuple[Mapping[str, Any], ...] = ()
    declared: Mapping[str, Any] = field(default_factory=dict)
    epsilon: float | None = None

    @property
    def choices(self) -> list[dict[str, Any]]:
        """Settings, in the order in which they are tried."""
        return [{**self.settings, **changes} for changes in self.otherwise or ({},)]


@dataclass(frozen=True, kw_only=True)
class Size:
    """How large everything is; the same for every line of a table.

    Attributes:
        records: Most source records.
        held_out: Most held-out records.
        rows: Rows that a corpus writes where they are free, and that all corpora are scored on.
        documents: Public documents.
        topics: Settings of the public topics.
        clusters: Public centres.
        next_word: The next-word model that is trained on every corpus.
        training, evolution, vectors: Settings of the methods of each family.
        downstream_steps: Steps of models that are trained on records directly; None: as `training`.
        contexts: Contexts of a batch in private prediction at ε = 10, and how many more at ε = 3.
        batches: Most batches of private prediction.
        words: Secret words of the secret-protection table.
        invented: Public documents are written by the public model from the cohort's domain and
            labels, not taken from other corpora.
    """

    records: int
    held_out: int
    rows: int
    documents: int
    topics: Mapping[str, Any] = field(default_factory=dict)
    clusters: int = 48
    next_word: NextWordSettings = field(default_factory=lambda: NextWordSettings(score_texts=500))
    training: Mapping[str, Any] = field(default_factory=dict)
    evolution: Mapping[str, Any] = field(default_factory=dict)
    vectors: Mapping[str, Any] = field(default_factory=dict)
    downstream_steps: int | None = None
    contexts: int = 64
    batches: int = 8
    words: int = 300
    invented: bool = False


SIZES = {
    "tiny": Size(
        records=300, held_out=120, rows=24, documents=400, clusters=6,
        topics={"min_cluster_size": 5, "min_samples": 2, "sample_documents": 400},
        next_word=NextWordSettings(token_budget=6_000, width=32, feed_forward=64, score_texts=60),
        training={"steps": 3, "expected_batch_size": 64, "max_document_tokens": 32},
        evolution={"population": 20, "variations": 2, "iterations": 2, "max_new_tokens": 24},
        vectors={
            "candidates": 20, "negatives": 10, "clip_documents": 20, "max_document_tokens": 32,
            "max_new_tokens": 32,
        },
        contexts=32, batches=4, words=30,
    ),
    "small": Size(
        records=4_000, held_out=1_000, rows=500, documents=8_000,
        training={"steps": 40, "expected_batch_size": 256, "max_document_tokens": 96},
        evolution={"population": 60, "variations": 5, "iterations": 4, "max_new_tokens": 64},
        vectors={
            "candidates": 100, "negatives": 100, "clip_documents": 200, "max_document_tokens": 72,
            "max_new_tokens": 72,
        },
    ),
    "english": Size(  # For SmolLM2 on two cores.
        records=4_000, held_out=1_000, rows=400, documents=1_500, invented=True,
        training={
            "steps": 4, "expected_batch_size": 256, "learning_rate": 0.01,
            "max_document_tokens": 72,
        },
        downstream_steps=40,
        evolution={"population": 400, "variations": 2, "iterations": 3, "max_new_tokens": 72},
        vectors={
            "candidates": 100, "negatives": 100, "clip_documents": 200, "max_document_tokens": 72,
            "max_new_tokens": 72,
        },
        batches=64,
    ),
    "large": Size(  # For a GPU.
        records=100_000, held_out=2_000, rows=2_000, documents=60_000,
        next_word=NextWordSettings(
            vocabulary=30_000, width=256, layers=4, heads=4, feed_forward=688,
            max_document_tokens=128, token_budget=6_000_000, batch_tokens=4096, device="cuda",
            matrix_learning_rate=0.01, learning_rate=1e-3, score_texts=1000,
        ),
        training={
            "steps": 300, "expected_batch_size": 2048, "learning_rate": 5e-4,
            "micro_batch_records": 256, "max_document_tokens": 128,
        },
        evolution={"population": 400, "variations": 6, "iterations": 10, "max_new_tokens": 64},
        vectors={
            "candidates": 100, "negatives": 200, "clip_documents": 200, "max_document_tokens": 72,
            "max_new_tokens": 72,
        },
        words=1_000,
    ),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A table: its cohorts, lines, ε, and in what it departs from a size.

    Attributes:
        entries: Its lines, given the size and one ε.
        cohorts: Names of cohorts.
        epsilons: ε of every line that has none of its own.
        delta: δ, a public constant.
        per_label: Source records of each label; None: as they come.
        size: What replaces the size's, except where it is tiny.
    """

    entries: Callable[[Size, float], Iterable[Entry]]
    cohorts: tuple[str, ...]
    epsilons: tuple[float, ...]
    delta: float = 1e-6
    per_label: int | None = None
    size: Mapping[str, Any] = field(default_factory=dict)


def fine_tuning(size: Size, _epsilon: float) -> Iterable[Entry]:
    """CTCL and what Tan et al. 2025 compare it with."""
    training, twice = dict(size.training), {"rows": 2 * size.rows}
    vanilla = {"method": "dp_fine_tuning", "settings": {**training, **twice}}
    trained = {name: value for name, value in training.items() if name != "max_document_tokens"}
    trained["steps"] = size.downstream_steps or training["steps"]
    yield Entry(title="ctcl", method="ctcl", settings=training)
    yield Entry(title="vanilla", method="dp_fine_tuning", settings=training)
    yield Entry(
        title="vanilla + resample",
        method="resampled",
        settings={"rows": size.rows},
        declared={"methods": [vanilla]},
    )
    shape = ("vocabulary", "width", "layers", "heads", "feed_forward", "max_document_tokens")
    words = {name: getattr(size.next_word, name) for name in shape}
    yield Entry(
        title="downstream DP-FT, next word",
        method="downstream_fine_tuning",
        settings={**trained, "learning_rate": 5e-3, **words},
    )
    yield Entry(
        title="downstream DP-FT, classifier",
        method="downstream_fine_tuning",
        settings={
            **{name: value for name, value in trained.items() if name != "learning_rate"},
            "task": "classification",
        },
    )


def parts_of_ctcl(size: Size, _epsilon: float) -> Iterable[Entry]:
    """Table 5 of Tan et al. 2025: keywords taken away; pretraining is `--generator pairs`."""
    training = dict(size.training)
    yield Entry(title="vanilla", method="dp_fine_tuning", settings=training)
    yield Entry(
        title="+ keywords", method="dp_fine_tuning", settings={**training, "keywords": True}
    )


def evolution(size: Size, _epsilon: float) -> Iterable[Entry]:
    """Aug-PE (Xie et al. 2024)."""
    yield Entry(title="Aug-PE", method="aug_pe", settings=_evolution(size))


def secret_protection(size: Size, _epsilon: float) -> Iterable[Entry]:
    """SecPE beside Aug-PE at an equal promise to secrets: r/p = 2, 10, 50."""
    yield Entry(title="Aug-PE, least noise", method="aug_pe", settings=_evolution(size))
    for ratio in (2.0, 10.0, 50.0):
        mu = gaussian_budget(PRIOR, ratio * PRIOR)
        for records, of in ((1, "one record"), (OCCURRENCES, "m records")):
            yield Entry(
                title=f"Aug-PE, μ of {of}, r/p = {ratio:g}",
                method="aug_pe",
                settings=_evolution(size),
                epsilon=float(gaussian_epsilon(mu / records, 1e-6)),
            )
        word = {
            "name": "word", "detector": "rare_words", "quantile": 0.8, "words": size.words,
            "max_records": OCCURRENCES, "prior": PRIOR, "posterior": ratio * PRIOR,
        }  # fmt: skip
        for clusters in (4, 16):
            yield Entry(
                title=f"SecPE, {clusters} clusters a label, r/p = {ratio:g}",
                method="secpe",
                settings={**_evolution(size), "clusters": clusters},
                declared={"secrets": {"kinds": [word], "planted": 0}},
                epsilon=1.0,  # Not spent: secrets are promised (p, r), not ε.
            )


def vectors(size: Size, epsilon: float) -> Iterable[Entry]:
    """EPSVec beside private prediction on few records of each label."""
    yield from parts_of_epsvec(size, epsilon)
    yield _prediction(size, epsilon, "private prediction (mean)", "mean_uniform", larger=(1, 2, 4))
    yield _prediction(size, epsilon, "InvisibleInk", "invisible_ink", larger=(1 / 8, 1 / 4, 1 / 2))


def free_rows(size: Size, _epsilon: float) -> Iterable[Entry]:
    """One method of each family that writes any number of rows."""
    yield Entry(title="Aug-PE", method="aug_pe", settings=_evolution(size))
    drawn = {**size.vectors, "shots": 1, "kept_shots": 12}
    yield Entry(title="EPSVec, drawn shots", method="epsvec", settings=drawn)
    yield Entry(title="CTCL", method="ctcl", settings=dict(size.training))


def parts_of_epsvec(size: Size, _epsilon: float) -> Iterable[Entry]:
    """EPSVec's parts: shots, vectors, and shots that are drawn anew for each row."""
    drawn = {"shots": 1, "kept_shots": 16}
    settings: dict[str, Mapping[str, Any]] = {
        "fixed shots": {"use_vectors": False},
        "vectors": {"use_fixed_shots": False},
        "fixed shots and vectors": {},
        "drawn shots": {"use_vectors": False, **drawn},
        "drawn shots and vectors": drawn,
    }
    for title, changes in settings.items():
        yield Entry(title=title, method="epsvec", settings={**size.vectors, **changes})


def layers_of_epsvec(size: Size, _epsilon: float) -> Iterable[Entry]:
    """Figure 9 of Banayeeanzade et al. 2026: which four layers are steered, and how far."""
    yield Entry(title="not steered", method="epsvec",
                settings={**size.vectors, "use_vectors": False})  # fmt: skip
    for first in STEERED_LAYERS:
        block = list(range(first, first + 4))
        for strength in (1.0, 2.0, 4.0):
            yield Entry(
                title=f"layers {first} to {first + 3}, β = {strength:g}",
                method="epsvec",
                settings={**size.vectors, "layers": block, "strengths": [strength]},
            )


def records_of_epsvec(size: Size, _epsilon: float) -> Iterable[Entry]:
    """EPSVec with few records of each label: what vectors add to fixed shots."""
    for title, used in (("fixed shots", False), ("fixed shots and vectors", True)):
        yield Entry(title=title, method="epsvec", settings={**size.vectors, "use_vectors": used})


def prediction(size: Size, epsilon: float) -> Iterable[Entry]:
    """Table 3 of Amin et al. 2025: the mean, two examples a context, clusters, the median."""
    clusters = {"cluster_histogram": {"clusters_per_label": 3 if epsilon > 5 else 2}}
    two = {"examples_per_context": 2}
    yield _prediction(size, epsilon, "mean (k = 1)", "mean_uniform")
    yield _prediction(size, epsilon, "mean, two examples (k = 2)", "mean_uniform", settings=two)
    for kind, further in (("mean", {}), ("median", {"matched_epsilon": epsilon})):
        yield _prediction(
            size, epsilon, f"{kind}, clustered (k = 2)", f"{kind}_clustered",
            settings={**two, **further}, declared=clusters,
        )  # fmt: skip


def open_prediction(size: Size, epsilon: float) -> Iterable[Entry]:
    """Every method of private prediction with a pretrained model, on some of the batches."""
    yield from prediction(size, epsilon)
    public = {"svt_threshold": 0.5, "public_temperature": 1.0}
    yield _prediction(size, epsilon, "mean with the public-token test", "mean_svt", settings=public)
    yield _prediction(size, epsilon, "InvisibleInk", "invisible_ink", larger=(1 / 8, 1 / 4, 1 / 2))


def structured_prediction(size: Size, _epsilon: float) -> Iterable[Entry]:
    """Table 4 of Amin et al. 2024: JSON records with and without the public-token test."""
    tokens = 144 if size.batches > 4 else 48
    settings = {
        "expected_batch_size": size.contexts, "max_batches": size.batches,
        "max_document_tokens": tokens, "max_example_tokens": tokens, "batches_per_forward": 4,
        "on_exhaustion": "drop",
    }  # fmt: skip
    yield Entry(title="mean", method="mean_uniform", settings=settings)
    for threshold in (0.5, 1.0):
        yield Entry(
            title=f"mean_svt, θ = {threshold:g}",
            method="mean_svt",
            settings={**settings, "svt_threshold": threshold, "public_temperature": 0.75},
        )


def references(*names: str) -> list[Entry]:
    """Lines that are no methods."""
    titles = {
        "real_data": "real data",
        "public_only": "public only (floor)",
        "public_generator": "public generator",
        "one_real_example": "one real example, no privacy",
    }
    return [Entry(title=titles[name], method=name) for name in names]


def of_method(size: Size, name: str) -> Entry:
    """A registered method with the size's settings."""
    if name == "epsvec":  # Its ablation's lines switch parts of it off.
        return Entry(title=name, method=name, settings=dict(size.vectors))
    for family in (fine_tuning, evolution, prediction):
        for entry in family(size, 10.0):
            if entry.method == name:
                return Entry(**{**vars(entry), "title": name})
    return Entry(title=name, method=name)


def _evolution(size: Size) -> dict[str, Any]:
    return {**size.evolution, "rows": size.rows}


def _prediction(
    size: Size,
    epsilon: float,
    title: str,
    method: str,
    *,
    settings: Mapping[str, Any] | None = None,
    declared: Mapping[str, Any] | None = None,
    larger: Iterable[float] = (1,),
) -> Entry:
    """Full batches of zero-out neighbours; the smallest contexts whose plan is not refused."""
    contexts = size.contexts if epsilon > 5 else 3 * size.contexts
    tokens = 72 if size.batches > 4 else 32
    return Entry(
        title=title,
        method=method,
        settings={
            "max_batches": size.batches, "max_document_tokens": tokens,
            "max_example_tokens": tokens, "batches_per_forward": 4, "batching": "slots",
            "on_exhaustion": "finish_publicly", **(settings or {}),
        },
        otherwise=tuple({"expected_batch_size": round(contexts * times)} for times in larger),
        declared={
            "neighboring_relation": "zero-out",
            "public_facts": {"slots": True},
            "budget": {"accepts_ex_post": True},
            **(declared or {}),
        },
    )  # fmt: skip


def _with(names: Iterable[str], family: Callable[[Size, float], Iterable[Entry]]) -> Any:
    def entries(size: Size, epsilon: float) -> list[Entry]:
        return [*references(*names), *family(size, epsilon)]

    return entries


_REFERENCES = ("real_data", "public_only", "one_real_example")

PRESETS = {
    "ctcl": Preset(
        entries=_with(("real_data", "public_generator"), fine_tuning),
        cohorts=("yelp_rating", "ag_news"), epsilons=(4.0, 2.0, 1.0), delta=1e-5,
    ),
    "ctcl_parts": Preset(
        entries=_with(("real_data",), parts_of_ctcl), cohorts=("letters",), epsilons=(4.0,),
        size={
            "records": 2_800, "held_out": 700, "rows": 600, "documents": 5_000,
            "training": {"steps": 30, "expected_batch_size": 192, "max_document_tokens": 96},
        },
    ),
    "epsvec": Preset(
        entries=_with(("real_data", "public_only"), vectors),
        cohorts=("yelp_sentiment", "ag_news"), epsilons=(5.0, 3.0), delta=1e-5, per_label=500,
        size={"held_out": 800, "rows": 200},
    ),
    "epsvec_parts": Preset(
        entries=_with(("real_data", "public_only"), parts_of_epsvec), cohorts=("letters",),
        epsilons=(5.0,), size={"records": 500, "held_out": 250, "rows": 120},
    ),
    "epsvec_layers": Preset(
        entries=_with(("real_data", "public_only"), layers_of_epsvec), cohorts=("yelp_rating",),
        epsilons=(5.0,), size={"records": 500, "held_out": 250, "rows": 120},
    ),
    "epsvec_records": Preset(  # With --per-label 50, 100, 250, 500.
        entries=_with(("real_data", "public_only"), records_of_epsvec), cohorts=("yelp_rating",),
        epsilons=(5.0,), per_label=500, size={"held_out": 500, "rows": 200},
    ),
    "evolution": Preset(
        entries=_with(("real_data", "public_only"), evolution),
        cohorts=("yelp_category", "yelp_rating"), epsilons=(1.0, 2.0, 4.0, 1000.0),
    ),
    "secpe": Preset(
        entries=_with(("real_data",), secret_protection), cohorts=("yelp_category_rating",),
        epsilons=(1000.0,),
        size={
            "records": 3_000, "held_out": 700, "rows": 300,
            "evolution": {
                "population": 100, "variations": 3, "iterations": 3, "max_new_tokens": 48,
            },
        },
    ),
    "prediction": Preset(
        entries=_with(("real_data", "public_only", "one_real_example"), prediction),
        cohorts=("yelp_sentiment", "ag_news"), epsilons=(10.0, 3.0),
        size={"rows": 20},
    ),
    "english_open": Preset(  # Methods whose rows are free, with a pretrained model.
        entries=_with(_REFERENCES, free_rows), cohorts=("yelp_rating", "ag_news", "movie_plots"),
        epsilons=(10.0, 3.0, 1.0), delta=1e-5,
    ),
    "english_prediction": Preset(
        entries=_with(_REFERENCES, open_prediction),
        cohorts=("yelp_rating", "ag_news", "movie_plots"), epsilons=(10.0, 3.0),
        size={"batches": 24},
    ),
    "movies": Preset(
        entries=structured_prediction, cohorts=("movies_json",), epsilons=(10.0,),
    ),
}  # fmt: skip
"""Tables of docs/benchmarks.md, by name."""
