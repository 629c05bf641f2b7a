"""The conditional generator: its sampling beside transformers' own, and its loss along training.

    python benchmarks/conditional_generator.py sampling --model FOLDER [--rows 512]
    python benchmarks/conditional_generator.py training --model FOLDER [--documents FILE]
        [--describe MODEL] [--pairs FILE]

`sampling` writes the same number of documents for the same conditions with `generate` of either
side, at the same batch size, nucleus and length bound, several times in turn; medians of processor
seconds are compared, and each side's share of ended documents and mean length are printed to show
that they do the same work. `training` writes a file of public pairs, whose conditions are keywords
of a topic or of the document, or aspects that the language model MODEL names, and trains the model
on it as a public base with `conditional_generator.pairs` does; it prints public loss against
processor seconds, and a few documents to read. Without FILE it takes the demo's public corpus.
FOLDER or hub id: a BART- or T5-like checkpoint, or a causal model.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import polars as pl
import torch
from demo_rows import public_rows
from pair_training.aspects import aspects_by_engine
from pair_training.keywords import document_keywords
from pair_training.pairs import ConditionSource, write_pairs

from dpsynth_assets.datasets.public_spec import EngineSpec, PairTrainingSpec
from dpsynth_assets.models.conditional_generator.encoding import condition_text
from dpsynth_assets.models.conditional_generator.generator import load_conditional_generator
from dpsynth_assets.models.conditional_generator.pair_training import (
    DiskCheckpoint,
    train_on_pairs,
)
from dpsynth_assets.models.engines.protocol import open_engine


def main() -> None:
    arguments = parse()
    torch.set_num_threads(arguments.threads)
    if arguments.what == "training":
        measure_training(arguments)
    else:
        measure_sampling(arguments)


def measure_training(arguments) -> None:
    documents, topics = corpus(arguments)
    texts, named = documents["text"].to_list(), None
    if arguments.describe is not None:
        engine = open_engine(EngineSpec(model=arguments.describe))
        named = aspects_by_engine(texts, engine, lambda share, told: print(f"{share:6.1%} {told}"))
    source = ConditionSource.of(documents, topics, named, topic_share=0.5)
    generator = load_conditional_generator(arguments.model, dtype="float32", device="cpu")
    with tempfile.TemporaryDirectory() as folder:
        path = arguments.pairs or Path(folder) / "pairs.parquet"
        write_pairs(source, texts, path, draws=arguments.draws)
        spec = PairTrainingSpec(
            path=str(path),
            condition="condition",
            steps=arguments.steps,
            batch=arguments.batch,
            learning_rate=arguments.rate,
        )
        start = time.process_time()

        def show(share, message):
            seconds = time.process_time() - start
            print(f"{share:6.1%}  {seconds:7.1f} cpu-s  {message}", flush=True)

        train_on_pairs(generator, spec, DiskCheckpoint(Path(folder) / "unfinished"), show)
    conditions = demo_conditions(documents, topics)[:6]
    for condition, text in zip(conditions, generator.generate(conditions), strict=True):
        print(f"\n{condition}\n    {text}")


def measure_sampling(arguments) -> None:
    documents, topics = corpus(arguments)
    generator = load_conditional_generator(arguments.model, device="cpu")
    conditions = demo_conditions(documents, topics)
    conditions = (conditions * (arguments.rows // len(conditions) + 1))[: arguments.rows]
    sides = {"ours": ours, "transformers": stock}
    seconds = {name: [] for name in sides}
    for repetition in range(arguments.repetitions + 1):
        for name, side in sides.items():
            start = time.process_time()
            texts = side(generator, conditions, repetition, arguments)
            if repetition:  # the first pair warms up
                seconds[name].append(time.process_time() - start)
                length = statistics.mean(len(text.split()) for text in texts)
                print(f"{name:12s} {seconds[name][-1]:6.1f} cpu-s, {length:.1f} words a document")
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    for name, median in medians.items():
        print(f"{name:12s} {arguments.rows / median:7.1f} documents a cpu-second")
    print(f"ratio {medians['transformers'] / medians['ours']:.2f}")


def ours(generator, conditions, seed, arguments) -> list[str]:
    return generator.generate(
        conditions, seed=seed, batch_rows=arguments.batch_rows, max_new_tokens=arguments.length
    )


def stock(generator, conditions, seed, arguments) -> list[str]:
    torch.manual_seed(seed)
    texts = []
    for start in range(0, len(conditions), arguments.batch_rows):
        part = conditions[start : start + arguments.batch_rows]
        encoder = generator.encoder
        ids = encoder.condition_ids(part, generator.max_condition_tokens)
        batch = encoder.pad(ids, [[encoder.end_token_id]] * len(part))
        with torch.inference_mode():
            ids = generator.model.generate(
                input_ids=batch.inputs["input_ids"],
                attention_mask=batch.inputs["attention_mask"],
                do_sample=True,
                top_p=0.95,
                top_k=0,
                max_new_tokens=arguments.length,
            )
        texts += generator.tokenizer.batch_decode(ids, skip_special_tokens=True)
    return texts


def corpus(arguments) -> tuple[pl.DataFrame, list[tuple[str, ...]] | None]:
    """A table of public documents, and the keywords of their topics where there are topics."""
    if arguments.documents is not None:
        return pl.read_parquet(arguments.documents), None
    documents = pl.DataFrame(public_rows(arguments.rows_of_demo, seed=0))
    topics = [group.split("/")[-1] for group in documents["group"]]
    names = sorted(set(topics))
    joined = [
        " ".join(documents.filter(pl.Series(topics) == name)["text"].to_list()) for name in names
    ]
    keywords = dict(zip(names, document_keywords(joined), strict=True))
    return documents, [keywords[topic] for topic in topics]


def demo_conditions(documents, topics) -> list[str]:
    words = topics or document_keywords(documents["text"].to_list())
    labels = documents["label"] if "label" in documents.columns else [None] * documents.height
    pairs = dict.fromkeys(zip(words, labels, strict=True))
    return [condition_text(keywords, None, label) for keywords, label in pairs]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("sampling", "training"))
    parser.add_argument("--model", required=True, help="folder or hub id")
    parser.add_argument("--documents", type=Path, help="Parquet with text, label, document_type")
    parser.add_argument("--rows-of-demo", type=int, default=8000)
    parser.add_argument("--describe", help="language model that names aspects of documents")
    parser.add_argument("--pairs", type=Path, help="Parquet file of pairs to keep")
    parser.add_argument("--draws", type=int, default=2, help="conditions of each document")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--rows", type=int, default=512, help="documents to write")
    parser.add_argument("--batch-rows", type=int, default=256)
    parser.add_argument("--length", type=int, default=160, help="bound on tokens of a document")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    main()
