"""Fits topic models and looks at them: time, memory, keywords, agreement with known classes.

    PYTHONPATH=. python benchmarks/topic_model.py demo
    PYTHONPATH=. python benchmarks/topic_model.py real --cache FOLDER [--documents 8000]
    PYTHONPATH=. python benchmarks/topic_model.py million --folder /tmp [--documents 1000000]
        [--sample 75000] [--max-share 0.002]
    PYTHONPATH=. python benchmarks/topic_model.py denoising

demo: the public letters of the demo, whose true topics are known. real: public text under
DPSYNTH_REAL_DATA (Wikipedia plots, the Brown corpus, news sentences, Wikipedia), then Yelp and AG
News assigned to its topics. million: planted topics in a memory map and lazy texts. denoising: how
far proportions are from the truth after each way of treating noisy counts; V-measure, NPMI (mean
over pairs of a topic's keywords, by co-occurrence in documents) and total variation are as usual.
"""

import argparse
import os
import threading
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import polars as pl

from dpsynth_assets.methods.shared_histograms import project_to_total
from dpsynth_assets.models.text_embedder import TextEmbedder
from dpsynth_assets.models.topic_model.fitting import fit_topic_model
from dpsynth_assets.models.topic_model.keywords import words_of
from dpsynth_assets.models.topic_model.model import TopicModel, TopicModelSettings
from dpsynth_assets.paths import project_root

REAL_DATA = Path(os.environ.get("DPSYNTH_REAL_DATA", project_root().parent / "shared" / "data"))
PUBLIC_FILES = {
    "wikipedia_movies": ("extract", 4000), "brown": ("text", 3500),
    "abc_news": ("text", 4000), "wikitext2": ("text", 2000),
}  # fmt: skip
PROBE_FILES = {"yelp_reviews": "category", "ag_news": "topic"}
DIMENSION = 384
CHUNK = 10_000


class PeakMemory:
    """Largest anonymous memory (mapped files apart) of this process while it is open, in MiB."""

    def __enter__(self):
        self.start = self.peak = _anonymous_mib()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._done.set()
        self._thread.join()

    def _watch(self):
        while not self._done.wait(0.05):
            self.peak = max(self.peak, _anonymous_mib())


def _anonymous_mib() -> float:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.split("RssAnon:")[1].split()[0]) / 1024


def fitted(texts, embeddings, embed_words, settings) -> TopicModel:
    last = [time.process_time(), ""]

    def progress(_: float, message: str) -> None:
        now = time.process_time()
        if last[1]:
            print(f"    {now - last[0]:7.1f} s  {last[1]}")
        last[:] = [now, message]

    wall, processor = time.perf_counter(), time.process_time()
    with PeakMemory() as memory:
        model = fit_topic_model(texts, embeddings, settings, embed_words, progress)
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    sizes = np.percentile(model.sizes, [0, 10, 50, 90, 100]).astype(int).tolist()
    print(
        f"  {len(embeddings)} documents, {model.topics} topics, {processor:.1f} s of processor, "
        f"{wall:.1f} s of wall, +{memory.peak - memory.start:.0f} MiB\n"
        f"  sizes (least, 10 %, median, 90 %, most) {sizes}, threshold {model.threshold:.3f}"
    )
    return model


def show_keywords(model: TopicModel, count: int = 30) -> None:
    order = np.argsort(-model.sizes)
    for topic in order[:: max(1, len(order) // count)]:
        print(f"    {model.sizes[topic]:6d}  {', '.join(model.keywords[topic])}")
    print(f"    unclassified: {', '.join(model.fallback_keywords)}")


def coherence(model: TopicModel, texts) -> float:
    """Mean normalised pointwise mutual information of keyword pairs."""
    from scipy.sparse import csr_matrix

    column = {w: i for i, w in enumerate(sorted({w for ws in model.keywords for w in ws}))}
    rows = [{column[w] for w in words_of(text, 10**6) if w in column} for text in texts]
    ends = np.cumsum([0, *map(len, rows)])
    columns = np.fromiter((c for row in rows for c in row), dtype=np.int64)
    table = csr_matrix((np.ones(len(columns)), columns, ends), shape=(len(rows), len(column)))
    together = (table.T @ table).toarray() / len(rows)
    alone = np.diag(together)
    with np.errstate(divide="ignore", invalid="ignore"):
        value = np.log(together / np.outer(alone, alone)) / -np.log(together)
    value[together == 0] = -1
    pairs = np.triu_indices(len(model.keywords[0]), 1)
    indices = [np.array([column[w] for w in words]) for words in model.keywords]
    return float(np.mean([value[np.ix_(i, i)][pairs].mean() for i in indices]))


def demo(arguments) -> None:
    from sklearn.metrics import v_measure_score

    documents = pl.read_parquet(project_root() / "data" / "demo" / "public.parquet")
    documents = documents.head(arguments.documents or documents.height)
    texts = documents["text"].to_list()
    embedder = TextEmbedder()
    embeddings = cached(arguments.cache, f"demo_{len(texts)}", texts, embedder)
    model = fitted(texts, embeddings, embedder.embed, TopicModelSettings())
    truth = [group.rsplit("/", 1)[-1] for group in documents["group"]]
    print(
        f"  V-measure to the {len(set(truth))} true topics "
        f"{v_measure_score(truth, model.assign(embeddings)):.3f}, "
        f"NPMI {coherence(model, texts):.3f}"
    )
    show_keywords(model)


def real(arguments) -> None:
    from sklearn.metrics import normalized_mutual_info_score

    embedder = TextEmbedder()
    limit = arguments.documents or 10**9
    frames = {f: pl.read_parquet(REAL_DATA / f"{f}.parquet") for f in PUBLIC_FILES}
    texts = []
    for name, (text, most) in PUBLIC_FILES.items():
        kept = frames[name][text].drop_nulls()
        kept = kept.filter(kept.str.len_chars() > 20)
        texts += kept.sample(min(most, limit // len(PUBLIC_FILES), len(kept)), seed=0).to_list()
    embeddings = cached(arguments.cache, f"real_{len(texts)}", texts, embedder)
    model = fitted(texts, embeddings, embedder.embed, TopicModelSettings())
    print(f"  NPMI {coherence(model, texts):.3f}")
    show_keywords(model)
    for name, label in PROBE_FILES.items():
        probe = pl.read_parquet(REAL_DATA / f"{name}.parquet").sample(2000, seed=0)
        values = cached(arguments.cache, f"{name}_2000", probe["text"].to_list(), embedder)
        topics = model.assign(values)
        counts = np.bincount(topics, minlength=model.bins)
        print(
            f"  {name}: unclassified {counts[-1] / 2000:.3f}, topics used {np.sum(counts > 0)}, "
            f"NMI with {label} {normalized_mutual_info_score(probe[label].to_list(), topics):.3f}"
        )
        for topic in np.argsort(-counts)[:6]:
            print(f"    {counts[topic]:6d}  {', '.join(model.condition_keywords(int(topic)))}")


def cached(folder: Path | None, name: str, texts: list[str], embedder: TextEmbedder) -> np.ndarray:
    file = None if folder is None else folder / f"{name}.npy"
    if file is not None and file.exists():
        return np.load(file, allow_pickle=False)
    embeddings = embedder.embed(texts)
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        np.save(file, embeddings, allow_pickle=False)
    return embeddings


class PlantedTexts:
    """Lazy documents: thirty words of the document's topic and ten of everybody's."""

    def __init__(self, topics: np.ndarray) -> None:
        self.topics = topics

    def __len__(self) -> int:
        return len(self.topics)

    def __iter__(self) -> Iterator[str]:
        for row, topic in enumerate(self.topics):
            own = [_word(topic * 40 + (row * 7 + 11 * i) % 40) for i in range(30)]
            yield " ".join([*own, *(_word(-1 - (row + i) % 200) for i in range(10))])


@cache
def _word(number: int) -> str:
    letters = "bcdfghjklmnpqrstvwxz"
    name = "q" if number < 0 else "k"
    number = abs(int(number))
    for _ in range(5):
        number, letter = divmod(number, len(letters))
        name += letters[letter] + "aeiou"[letter % 5]
    return name


def million(arguments) -> None:
    from sklearn.metrics import v_measure_score

    count, planted = arguments.documents or 1_000_000, 1_500
    random = np.random.default_rng(0)
    shares = 1 / np.arange(1, planted + 1) ** 0.5
    topics = random.choice(planted, size=count, p=shares / shares.sum())
    areas = random.normal(size=(60, DIMENSION))
    centers = areas[np.arange(planted) % 60] + 0.9 * random.normal(size=(planted, DIMENSION))
    file = arguments.folder / "planted_embeddings.npy"
    embeddings = np.lib.format.open_memmap(
        file, mode="w+", dtype=np.float32, shape=(count, DIMENSION)
    )
    for start in range(0, count, CHUNK):
        own = topics[start : start + CHUNK]
        values = centers[own] + 1.6 * random.standard_normal((len(own), DIMENSION), np.float32)
        embeddings[start : start + CHUNK] = values / np.linalg.norm(values, axis=1, keepdims=True)

    def embed_words(words):
        return random.standard_normal((len(words), DIMENSION), dtype=np.float32)

    mapped = np.load(file, mmap_mode="r")
    settings = TopicModelSettings(
        sample_documents=arguments.sample, max_topic_share=arguments.max_share
    )
    model = fitted(PlantedTexts(topics), mapped, embed_words, settings)
    assigned = model.assign(mapped[: 10 * CHUNK])
    truth = topics[: 10 * CHUNK]
    print(f"  V-measure to the {planted} planted topics {v_measure_score(truth, assigned):.3f}")
    file.unlink()


def denoising(_) -> None:
    """Total variation distance of proportions to the truth, all cells (and labels alone)."""
    noise_std, random = 10.0, np.random.default_rng(0)

    def floor(multiple: float):
        return lambda noisy: np.where(noisy < multiple * noise_std, 0.0, np.maximum(noisy, 0))

    ways = {"clamped": floor(0), "1 std": floor(1), "2 std": floor(2), "3 std": floor(3)}
    ways["projected"] = lambda n: project_to_total(n.ravel(), n.sum()).reshape(n.shape)
    print(f"  {'labels x topics, records, steepness':<38}" + "".join(f"{w:>16}" for w in ways))
    for topics, labels, records, active, steepness in (
        (84, 4, 5_000, 0.3, 1.0), (84, 4, 5_000, 1.0, 0.5), (200, 5, 5_000, 0.5, 1.0),
        (1300, 1, 8_000, 0.3, 1.0), (1300, 5, 8_000, 0.3, 1.0), (1300, 1, 75_000, 0.5, 0.8),
        (1300, 5, 75_000, 0.5, 0.8), (1300, 5, 1_939_290, 0.5, 0.8),
    ):  # fmt: skip
        found: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
        for _ in range(10):
            truth = _counts(random, (labels, topics + 1), records, active, steepness)
            noisy = truth + np.rint(random.normal(0, noise_std, truth.shape))
            for way, treat in ways.items():
                found[way].append(_distances(treat(noisy), truth))
        cells = (np.mean(found[way], axis=0) for way in ways)
        line = "".join(f"{both:>8.3f} ({label:.3f})" for both, label in cells)
        print(f"  {f'{labels} x {topics}, {records}, {steepness}':<38}{line}")


def _counts(random, shape, records, active, steepness):
    shares = np.zeros(shape)
    for label in range(shape[0]):
        chosen = random.permutation(shape[1])[: int(active * shape[1])]
        weights = 1 / np.arange(1, len(chosen) + 1) ** steepness
        shares[label, chosen] = (1 + label) * weights / weights.sum()
    return random.multinomial(records, (shares / shares.sum()).ravel()).reshape(shape)


def _distances(estimate, truth):
    shares = (
        estimate / estimate.sum() if estimate.sum() > 0 else np.full(truth.shape, 1 / truth.size)
    )
    gap = shares - truth / truth.sum()
    return 0.5 * np.abs(gap).sum(), 0.5 * np.abs(gap.sum(axis=1)).sum()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parts = {"demo": demo, "real": real, "million": million, "denoising": denoising}
    parser.add_argument("part", choices=parts)
    parser.add_argument("--documents", type=int, default=None, help="fewer than all")
    parser.add_argument("--cache", type=Path, default=None, help="folder that keeps embeddings")
    parser.add_argument("--folder", type=Path, default=Path("/tmp"), help="of the memory map")
    parser.add_argument("--sample", type=int, default=50_000, help="documents clustered")
    parser.add_argument(
        "--max-share", type=float, default=0.05, help="a larger group is clustered again"
    )
    arguments = parser.parse_args()
    print(arguments.part)
    parts[arguments.part](arguments)


if __name__ == "__main__":
    main()
