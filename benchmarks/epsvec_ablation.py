"""What EPSVec's parts are worth (its Table 2), and how it takes its settings (Figures 5, 8, 9).

    python benchmarks/epsvec_ablation.py [table2] [figure5] [figure8] [figure9] [--tiny]
        [--epsilon 5] [--minutes 60] [--private FILE --column NAME] [--language-model FOLDER]
        [--device cuda] [--prompt base] [--output FOLDER]

Public text plays the private corpus: the grammar's private records by default, or one of FILE's
columns. `table2` takes steering, fixed shots and the noisy histogram away one by one. `figure5`
gives fewer and fewer records, each time as a cohort of its own. `figure8` sweeps the temperature,
`figure9` strengths at blocks of layers: all of them write from one release, at no further cost. The
paper's columns for instruction-tuned models need one: --language-model with --prompt instruction.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
from ctcl_runs import Corpus, Results, embedded, quiet, say, table
from demo_rows import private_rows, public_rows
from epsvec_runs import (
    Base,
    Cohort,
    Run,
    corpus_rows,
    released,
    scores,
    with_real_shots,
)

from dpsynth_assets.methods.epsvec import EpsVec
from dpsynth_assets.methods.epsvec.config import EpsVecConfig
from dpsynth_assets.models.engines.transformers_engine import TransformersEngine
from dpsynth_assets.models.language_model import load_language_model
from dpsynth_assets.models.language_model_training import TrainingSettings, train_language_model
from dpsynth_assets.models.text_embedder import TextEmbedder

PARTS = ("table2", "figure5", "figure8", "figure9")
VARIANTS = {
    "zero-shot": {"use_vectors": False, "use_fixed_shots": False},
    "EPSVec without fixed shots": {"use_fixed_shots": False},
    "fixed shots": {"use_vectors": False},
    "fixed shots without histogram": {"use_vectors": False, "private_histogram": False},
    "EPSVec without histogram": {"private_histogram": False},
    "EPSVec": {},
    "EPSVec, mean of negatives": {"pairing": "mean"},
    "drawn shots": {"use_vectors": False, "shots": 1, "kept_shots": 16},
    "EPSVec, drawn shots": {"shots": 1, "kept_shots": 16},
}
TEMPERATURES = (0.7, 1.0, 1.3)
STRENGTHS = (0.0, 1.0, 2.0, 4.0)
RECORD_COUNTS = (50, 100, 200, 500)
SCORES = ("mauve", "energy", "accuracy")
NAMES = ("MAUVE", "energy distance", "accuracy")


def main() -> None:
    arguments = parse()
    quiet()
    folder = Path(arguments.output)
    base = public_base(arguments, folder)
    cohort = load_cohort(arguments, base)
    config = settings_of(arguments)
    known = {
        "config": config.model_dump(mode="json"),
        "cohort": cohort.name,
        "records": len(cohort.train.texts),
        "model": base.engine.name,
        "epsilon": arguments.epsilon,
        "seed": arguments.seed,
    }
    results = Results(folder / "epsvec_ablation.json", known, arguments.minutes)
    parts = {"table2": table2, "figure5": figure5, "figure8": figure8, "figure9": figure9}
    text = "\n".join(
        parts[name](results, cohort, base, config, arguments) for name in arguments.what
    )
    (folder / "epsvec_ablation.md").write_text(text)
    print(text)


def table2(results: Results, cohort: Cohort, base: Base, config: EpsVecConfig, arguments) -> str:
    """Each part taken away, between real records as shots and no private text at all."""
    lines = [["real data", "∞", *measured(results, "real data", lambda: scores(
        corpus_rows(cohort.train, config.rows), cohort, base
    ))]]  # fmt: skip
    for name, changes in VARIANTS.items():

        def compute(changes=changes):
            run = made(cohort, base, config, arguments, **changes)
            rows = run.rows(config.rows, arguments.seed)
            return {"epsilon": run.plan.epsilon, **scores(rows, cohort, base)}

        found = results.unit(f"table2 {name}", compute)
        epsilon = None if found is None else float(found["epsilon"])
        lines.append([name, epsilon, *shown(found)])

    def real_shots():
        run = made(cohort, base, config, arguments)
        rows = with_real_shots(run, cohort, base.folder / "real_shots").rows(config.rows)
        return scores(rows, cohort, base)

    lines.append(["real records as shots", "∞", *measured(results, "table2 real", real_shots)])
    return table(["Table 2", "ε", *NAMES], lines)


def figure5(results: Results, cohort: Cohort, base: Base, config: EpsVecConfig, arguments) -> str:
    """Fewer records at the same ε: each count is a cohort of its own."""
    lines = []
    for count in [c for c in RECORD_COUNTS if c <= len(cohort.train.texts)]:
        part = replace(cohort, name=f"{cohort.name}_{count}", train=cohort.train.take(range(count)))
        found = measured(
            results,
            f"figure5 {count} records",
            lambda part=part: scores(
                made(part, base, config, arguments).rows(config.rows, arguments.seed), part, base
            ),
        )
        lines.append([count, *found])
    return table(["records (Figure 5)", *NAMES], lines)


def figure8(results: Results, cohort: Cohort, base: Base, config: EpsVecConfig, arguments) -> str:
    """Temperatures of writing, with and without steering, from one release."""
    lines = []
    for temperature in TEMPERATURES:
        line: list[object] = [temperature]
        for steered in (True, False):
            line += measured(
                results,
                f"figure8 temperature {temperature} steered {steered}",
                lambda temperature=temperature, steered=steered: scores(
                    made(cohort, base, config, arguments).rows(
                        config.rows, arguments.seed, temperature=temperature, use_vectors=steered
                    ),
                    cohort,
                    base,
                ),
            )
        lines.append(line)
    unsteered = [f"{name}, β = 0" for name in NAMES]
    return table(["temperature (Figure 8)", *NAMES, *unsteered], lines)


def figure9(results: Results, cohort: Cohort, base: Base, config: EpsVecConfig, arguments) -> str:
    """Strengths at blocks of layers; vectors of all layers are one release."""
    every = tuple(range(base.engine.layers))
    blocks = [tuple(int(n) for n in block) for block in np.array_split(every, min(4, len(every)))]
    whole = EpsVecConfig.model_validate(config.model_dump() | {"layers": every})
    lines = []
    for strength in STRENGTHS:
        line: list[object] = [strength]
        for block in blocks:
            at = f" layers {block}" if strength else ""  # unsteered rows are the same everywhere
            found = results.unit(
                f"figure9 strength {strength}{at}",
                lambda strength=strength, block=block: scores(
                    made(cohort, base, whole, arguments).rows(
                        config.rows, arguments.seed, steering_layers=block, strengths=(strength,)
                    ),
                    cohort,
                    base,
                ),
            )
            line += shown(found)
        lines.append(line)
    header = [f"{name}, layers {b[0]} to {b[-1]}" for b in blocks for name in NAMES]
    return table(["strength (Figure 9)", *header], lines)


def made(cohort: Cohort, base: Base, config: EpsVecConfig, arguments, **changes) -> Run:
    """The method with some settings changed, its stages run or read back."""
    changed = EpsVecConfig.model_validate(config.model_dump() | changes)
    method = EpsVec(changed, cohort.terms(arguments.epsilon))
    plan = method.plan(arguments.epsilon)
    return released(base, method, plan, cohort.private(), arguments.seed)


def measured(results: Results, name: str, compute) -> list[object]:
    return shown(results.unit(name, compute))


def shown(found: dict | None) -> list[object]:
    return [None if found is None else found.get(name) for name in SCORES]


def settings_of(arguments) -> EpsVecConfig:
    """One configuration that every part departs from."""
    size = (
        {"candidates": 16, "negatives": 12, "clip_documents": 20, "rows": 30,
         "max_document_tokens": 24, "max_new_tokens": 24}
        if arguments.tiny
        else {"candidates": 100, "negatives": 200, "clip_documents": 200, "rows": arguments.rows,
              "max_document_tokens": 96, "max_new_tokens": 96}
    )  # fmt: skip
    return EpsVecConfig(prompt=arguments.prompt, domain=arguments.domain, **size)


def public_base(arguments, folder: Path) -> Base:
    """Public documents of the grammar and a language model trained on them, or the one named."""
    documents = pl.DataFrame(public_rows(200 if arguments.tiny else 6000, seed=0))
    place = arguments.language_model or folder / ("model-tiny" if arguments.tiny else "model")
    if arguments.language_model is None and not (Path(place) / "training_facts.json").exists():
        say("training the public language model")
        train_language_model(documents, Path(place), training_settings(tiny=arguments.tiny))
    model = load_language_model(place, device=arguments.device)
    return Base(
        engine=TransformersEngine(model, batch_rows=64),
        embedder=TextEmbedder(),
        documents=documents,
        folder=folder / "stages",
    )


def training_settings(*, tiny: bool) -> TrainingSettings:
    """The embedded default model; for --tiny one of a few thousand weights."""
    if not tiny:
        return TrainingSettings(sequence_tokens=(192, 320))
    return TrainingSettings(
        vocabulary=400, width=16, heads=2, layers=2, feed_forward=24, token_budget=4000,
        batch_tokens=512, sequence_tokens=(64,), threads=1,
    )  # fmt: skip


def load_cohort(arguments, base: Base) -> Cohort:
    """Two thirds as records, a third to score against."""
    count = 90 if arguments.tiny else arguments.records
    if arguments.private is None:
        frame = pl.DataFrame(private_rows(count, seed=1)).select("text", "label")
        name = "demo"
    else:
        name = Path(arguments.private).stem
        frame = pl.read_parquet(arguments.private).select(
            pl.col(arguments.column).alias("text"), pl.lit("").alias("label")
        )
        frame = frame.drop_nulls().sample(n=min(count, frame.height), shuffle=True, seed=0)
    say(f"embedding {frame.height} records of {name}")
    whole: Corpus = embedded(base.embedder, frame["text"].to_list(), frame["label"].to_list())
    cut = frame.height * 2 // 3
    labels = tuple(sorted(set(whole.labels)))
    return Cohort(
        name=name,
        train=whole.take(range(cut)),
        test=whole.take(range(cut, frame.height)),
        labels=labels,
        label_texts=labels,
    )


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="*", default=list(PARTS), help=", ".join(PARTS))
    parser.add_argument("--tiny", action="store_true", help="toy sizes: does it run at all")
    parser.add_argument("--epsilon", type=float, default=5.0)
    parser.add_argument("--records", type=int, default=1500)
    parser.add_argument("--rows", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--private", default=None, help="Parquet file that plays the private side")
    parser.add_argument("--column", default="text")
    parser.add_argument("--language-model", default=None, help="folder or hub id")
    parser.add_argument("--prompt", default="document", choices=("document", "base", "instruction"))
    parser.add_argument("--domain", default="text")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--output", default=".dpsynth-epsvec")
    return parser.parse_args()


if __name__ == "__main__":
    main()
