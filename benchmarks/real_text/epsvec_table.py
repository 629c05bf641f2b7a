"""EPSVec beside private prediction on real text: 500 records a class, ε = 5 and 3, one command.

    python benchmarks/real_text/epsvec_table.py [--small | --tiny] [--datasets yelp,ag_news]
        [--epsilons 5,3] [--seeds 1] [--minutes 60] [--parts real,prediction,epsvec]
        [--language-model FOLDER] [--prompt base] [--device cuda] [--output FOLDER] [--report]

Yelp by sentiment and AG News by topic, as in the paper's low-data setting: fixed shots and dataset
vectors together, each alone, neither, and shots drawn anew for each row; the mean of Amin et al.
2024 and InvisibleInk at the same ε; real records. Every row is a cohort of its own with a dataset
file, a plan and an account: ε is what the ledger charged. (On real data, several accounts over one
corpus would add up.) How shots are drawn, and strength and layer of the steering, are chosen on
public text, movie plots in the records' place, by energy distance.
Scores are taken against other records of the same corpora: MAUVE, energy distance (smaller is
nearer), and accuracy of a classifier that was trained on the rows. Finished parts are kept in
FOLDER and not repeated.

Needs the real corpora: DPSYNTH_REAL_DATA, or ../shared/data beside the project. A model of a
million parameters writes fragments; --language-model takes a pretrained one, --prompt base the
paper's prompts.
"""

import argparse
import hashlib
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from ctcl_runs import Results, embedded, quiet, say, table
from epsvec_runs import Base, Cohort, corpus_rows, quietly, released, scores
from prediction_base import pieces, public_documents, trained_model
from prediction_cohorts import COHORTS, prepare

from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.methods.base import CohortTerms
from dpsynth_assets.methods.epsvec import EpsVec
from dpsynth_assets.methods.epsvec.config import EpsVecConfig
from dpsynth_assets.methods.inputs import PrivateInputs, PublicInputs
from dpsynth_assets.methods.planned import DatasetPlan, PlannedMethod
from dpsynth_assets.methods.planning import plan_dataset
from dpsynth_assets.models.engines.transformers_engine import TransformersEngine
from dpsynth_assets.models.language_model import LanguageModel, load_language_model
from dpsynth_assets.models.language_model_training import TrainingSettings
from dpsynth_assets.models.text_embedder import TextEmbedder
from dpsynth_assets.paths import project_root
from dpsynth_assets.privacy.ledger import Ledger, ReleaseRequest
from dpsynth_assets.records import read_private_records

DELTA = 1e-5
CHARACTERS = 240
DOMAINS = {"yelp": "{label}", "ag_news": "news article about {label}"}
EPSVEC_ROWS: Mapping[str, Mapping[str, Any]] = {
    "zero-shot": {"use_vectors": False, "use_fixed_shots": False},
    "fixed shots": {"use_vectors": False},
    "vectors": {"use_fixed_shots": False},
    "fixed shots and vectors": {},
    "drawn shots": {"use_vectors": False, "drawn": True},
    "drawn shots and vectors": {"drawn": True},
}
PREDICTION_ROWS = {"private prediction (mean)": "mean_uniform", "InvisibleInk": "invisible_ink"}
REAL = "real records"
PARTS = ("real", "epsvec", "prediction")
NAMES = ("MAUVE", "energy distance", "accuracy")
LAYERS_TRIED, STRENGTHS_TRIED = 2, (1.0, 2.0, 4.0)
DRAWS_TRIED = ((1, 8), (2, 8), (1, 24))
"""Shots in a prompt, and candidates kept that they are drawn from."""


EMBEDDED = TrainingSettings(
    vocabulary=4096, token_budget=4_000_000, max_document_tokens=152, sequence_tokens=(256, 320)
)
"""The embedded model, with room for two shots and a row."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """How large everything is; the same for every row of a table."""

    records_per_class: int = 500
    test_rows: int = 800
    rows: int = 400
    candidates: int = 100
    negatives: int = 200
    clip_documents: int = 200
    tokens: int = 72
    contexts: tuple[int, ...] = (64, 128, 192, 256)
    model: TrainingSettings = EMBEDDED
    public_documents: int | None = None


SIZES = {
    "full": Size(),
    "small": Size(
        rows=200,
        negatives=100,
        model=EMBEDDED.model_copy(update={"token_budget": 1_500_000}),
    ),
    "tiny": Size(
        records_per_class=40, test_rows=60, rows=24, candidates=10, negatives=10,
        clip_documents=20, tokens=32, contexts=(32,), public_documents=300,
        model=TrainingSettings(
            vocabulary=400, width=16, heads=2, layers=2, feed_forward=24, token_budget=4000,
            batch_tokens=512, sequence_tokens=(64,), threads=1,
        ),
    ),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Bench:
    """What all rows share.

    Attributes:
        base: Public side.
        model: The public language model.
        ledger: Holds one account for each row of the table.
        folder: Where everything is kept.
        size: How large everything is.
        prompt: Prompt family of EPSVec.
        chosen: Draws of shots, and layers and strength, that were chosen on public text.
    """

    base: Base
    model: LanguageModel
    ledger: Ledger
    folder: Path
    size: Size
    prompt: str
    chosen: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Account:
    """One row's dataset file, its plan, and its method."""

    spec: PrivateDatasetSpec
    plan: DatasetPlan
    planned: PlannedMethod

    @property
    def terms(self) -> CohortTerms:
        """The cohort's declared facts."""
        return self.plan.terms


def main() -> None:
    arguments = parse()
    quiet()
    data = Path(os.environ.get("DPSYNTH_REAL_DATA") or project_root().parent / "shared" / "data")
    if not data.is_dir():
        print(f"skipped: no real corpora at {data}; set DPSYNTH_REAL_DATA")
        return
    folder = Path(arguments.output)
    folder.mkdir(parents=True, exist_ok=True)
    results, bench = prepared(arguments, data, folder)
    for seed in range(0 if arguments.report else arguments.seeds):
        for epsilon in map(float, arguments.epsilons.split(",")):
            for name in arguments.datasets.split(","):
                cohort = cohort_of(bench, name, data, seed)
                measure(results, bench, cohort, epsilon, seed, arguments.parts.split(","))
    text = report(results, arguments)
    (folder / "epsvec_table.md").write_text(text)
    print(text)


def measure(
    results: Results, bench: Bench, cohort: Cohort, epsilon: float, seed: int, parts: list[str]
) -> None:
    """The chosen rows of one cohort at one ε; each is kept once it is done."""
    prefix = f"{cohort.name} seed {seed}"
    real = corpus_rows(cohort.train, bench.size.rows)
    if "real" in parts:
        results.unit(f"{prefix} {REAL}", lambda: scores(real, cohort, bench.base, seed=seed))
    for row in EPSVEC_ROWS if "epsvec" in parts else ():
        at = prefix if row == "zero-shot" else f"{prefix} ε={epsilon:g}"
        results.unit(f"{at} {row}", lambda row=row: epsvec(bench, cohort, epsilon, row, seed))
    for row in PREDICTION_ROWS if "prediction" in parts else ():
        results.unit(
            f"{prefix} ε={epsilon:g} {row}",
            lambda row=row: prediction(bench, cohort, epsilon, row, seed),
        )


def epsvec(bench: Bench, cohort: Cohort, epsilon: float, row: str, seed: int) -> dict:
    """One row of EPSVec: charged, released, written and scored."""
    size = bench.size
    settings = {
        "candidates": size.candidates, "negatives": size.negatives, "rows": size.rows,
        "clip_documents": size.clip_documents, "max_document_tokens": size.tokens,
        "max_new_tokens": size.tokens, "prompt": bench.prompt,
        "domain": DOMAINS[cohort.name], **bench.chosen["steering"], **EPSVEC_ROWS[row],
    }  # fmt: skip
    if settings.pop("drawn", False):
        settings |= bench.chosen["draws"]
    account = declared(bench, cohort, epsilon, row, seed, "epsvec", settings)
    charge(bench.ledger, account)
    run = released(
        bench.base,
        account.planned.method,
        account.planned.plan,
        private_of(account, cohort),
        seed,
        shared=cohort.name,
    )
    rows = run.rows(size.rows, seed)
    vectors = run.public.released.get("dataset_vectors")
    facts = {} if vectors is None else {"signal_over_noise": vectors.facts["signal_over_noise"]}
    return {**scored(bench, account, rows, cohort, seed), **facts}


def prediction(bench: Bench, cohort: Cohort, epsilon: float, row: str, seed: int) -> dict:
    """One row of private prediction with the same records, model and ε."""
    account = fitting_batches(bench, cohort, epsilon, row, seed)
    if account.planned.plan.refusal is not None:
        return {"refusal": account.planned.plan.refusal, "rows_written": 0, "rows": 0}
    charge(bench.ledger, account)
    public = PublicInputs(language_model=bench.model, salt=account.spec.name, seed=seed)
    made = account.planned.method.generate(
        account.planned.plan,
        account.planned.config,
        account.terms,
        private_of(account, cohort),
        public,
        quietly,
    )
    found = scored(bench, account, made.value.rows, cohort, seed)
    return {"contexts": account.planned.config.expected_batch_size, **found}


def fitting_batches(bench: Bench, cohort: Cohort, epsilon: float, row: str, seed: int) -> Account:
    """The plan with the smallest batches that buy a text's first tokens, or with the largest."""
    size, method = bench.size, PREDICTION_ROWS[row]
    for each in size.contexts:
        contexts = each // 8 if method == "invisible_ink" else each  # It clips differences only.
        settings = {
            "expected_batch_size": contexts,
            "max_batches": max(1, size.rows // 4),
            "max_document_tokens": size.tokens,
            "max_example_tokens": size.tokens,
            "batches_per_forward": max(1, 256 // contexts),
            "batching": "slots",
            "on_exhaustion": "finish_publicly",
        }
        account = declared(bench, cohort, epsilon, row, seed, method, settings)
        if account.planned.plan.refusal is None:
            break
    return account


def scored(
    bench: Bench, account: Account, rows: pl.DataFrame, cohort: Cohort, seed: int
) -> dict[str, Any]:
    """Scores of a row, and what the ledger says that it spent."""
    spend = bench.ledger.spend(account.spec.name, account.plan.budget)
    kept = rows.select("text", "label").sample(
        min(bench.size.rows, rows.height), shuffle=True, seed=seed
    )
    kept.write_parquet(bench.folder / "rows" / f"{account.spec.name}.parquet")
    return {
        "epsilon": float(spend.epsilon),
        "rows_written": rows.height,
        **scores(kept, cohort, bench.base, seed=seed),
    }


def declared(
    bench: Bench,
    cohort: Cohort,
    epsilon: float,
    row: str,
    seed: int,
    method: str,
    settings: Mapping[str, Any],
) -> Account:
    """The dataset file of one row and its plan.

    All rows declare the same: zero-out neighbours, and the number and places of records public,
    which private prediction needs for full batches (`prediction_cohorts`).
    """
    label = next(iter(COHORTS[cohort.name].labels))
    words = "".join(letter if letter.isalnum() else "_" for letter in row.lower())
    spec = PrivateDatasetSpec.model_validate(
        {
            "name": f"{cohort.name}_{epsilon:g}_{words}_{seed}".replace(".", "_")[:64],
            "source": {"path": str(records_file(bench, cohort.name, seed))},
            "columns": {"text": "text", "labels": [label], "id": "id"},
            "neighboring_relation": "zero-out",
            "public_facts": {
                "labels": {label: dict(zip(cohort.labels, cohort.label_texts, strict=True))},
                "records": len(cohort.train.texts),
                "slots": True,
            },
            "held_out_fraction": 0,
            "budget": {"epsilon": epsilon, "delta": DELTA, "accountant": "tight"},
            "methods": [{"method": method, "settings": dict(settings)}],
        }
    )
    plan = plan_dataset(spec)
    return Account(spec=spec, plan=plan, planned=plan.methods[0])


def charge(ledger: Ledger, account: Account) -> None:
    """Reserves and commits every planned release, before anything private is read.

    A row that was charged in an earlier run is charged nothing again.
    """
    plan, method = account.plan, account.planned
    for release in plan.releases:
        request = ReleaseRequest(
            cohort=account.spec.name,
            dataset=account.spec.name,
            asset=release.asset,
            mechanism=method.method.name,
            guarantee=method.plan.guarantee,
            event=release.event,
            parameters=method.plan.parameters,
            code_version=method.method.code_version,
            data_version=account.spec.source.version,
        )
        reservation = ledger.reserve(request, plan.budget, plan.releases)
        if not reservation.reused:
            ledger.commit(reservation, artifact_digest="0" * 64, artifact_uri="benchmark")


def private_of(account: Account, cohort: Cohort) -> PrivateInputs:
    """The records as the dataset file reads them, with their embeddings."""
    records = read_private_records(account.spec).records
    place = {text: row for row, text in enumerate(cohort.train.texts)}
    order = [place[text] for text in records["text"]]
    return PrivateInputs(records=records, embeddings=cohort.train.features[order])


def cohort_of(bench: Bench, name: str, data: Path, seed: int) -> Cohort:
    """As many records of each class as the size says, and others to score against."""
    declared = COHORTS[name]
    label, texts = next(iter(declared.labels.items()))
    file = records_file(bench, name, seed)
    tests = file.with_name(file.stem + "_test.parquet")
    if not tests.exists():
        frame = pl.read_parquet(prepare(declared, data, bench.folder), columns=["text", label])
        frame = frame.unique("text")
        shuffled = frame.sort("text").sample(fraction=1, shuffle=True, seed=seed)
        parts = shuffled.partition_by(label, maintain_order=True)
        records, size = bench.size.records_per_class, bench.size
        chosen = pl.concat([part.head(records) for part in parts]).with_row_index("id")
        chosen.with_columns(pl.col("id").cast(pl.String)).write_parquet(file)
        most = size.test_rows // len(parts)
        pl.concat([part.slice(records, most) for part in parts]).write_parquet(tests)
    train, test = (
        embedded(bench.base.embedder, frame["text"].to_list(), frame[label].to_list())
        for frame in (pl.read_parquet(file), pl.read_parquet(tests))
    )
    order = np.random.default_rng(seed).permutation(len(train.texts)).tolist()
    return Cohort(
        name=name,
        train=train.take(order),
        test=test,
        labels=tuple(texts),
        label_texts=tuple(texts.values()),
    )


def records_file(bench: Bench, name: str, seed: int) -> Path:
    return bench.folder / f"{name}_{bench.size.records_per_class}_{seed}.parquet"


def prepared(arguments: argparse.Namespace, data: Path, folder: Path) -> tuple[Results, Bench]:
    """Public side: documents, model, engine, embedder, and the steering chosen on public text."""
    size = SIZES["tiny" if arguments.tiny else "small" if arguments.small else "full"]
    (folder / "rows").mkdir(exist_ok=True)
    documents = public_documents(data)
    documents = documents.filter(~pl.col("group").str.starts_with("records"))
    if size.public_documents is not None:
        documents = documents.sample(size.public_documents, seed=0)
    model = language_model(arguments, size, documents, folder)
    base = Base(
        engine=TransformersEngine(model, batch_rows=64),
        embedder=TextEmbedder(),
        documents=documents,
        folder=folder / "stages" / model.name,
    )
    known = {
        "size": {**vars(size), "model": model.name},
        "prompt": arguments.prompt,
        "delta": DELTA,
    }
    results = Results(folder / "epsvec_table.json", known, arguments.minutes)
    digest = hashlib.sha256(json.dumps(known).encode()).hexdigest()[:12]
    ledger = Ledger(f"sqlite:///{folder.resolve()}/ledger_{digest}.db")  # One for each table.
    bench = Bench(
        base=base, model=model, ledger=ledger, folder=folder, size=size, prompt=arguments.prompt,
        chosen={},
    )  # fmt: skip
    if "epsvec" not in arguments.parts.split(","):
        return results, bench
    chosen = results.unit("chosen on public text", lambda: public_choice(bench, data))
    if chosen is None:
        raise SystemExit("No time left to choose settings on public text; raise --minutes.")
    return results, replace(bench, chosen=chosen)


def language_model(
    arguments: argparse.Namespace, size: Size, documents: pl.DataFrame, folder: Path
) -> LanguageModel:
    """The named model, or an embedded one trained on the public documents."""
    if arguments.language_model is not None:
        return load_language_model(arguments.language_model, device=arguments.device)
    place = folder / f"model_{size.model.token_budget}"
    model, facts = trained_model(documents, place, size.model, arguments.device)
    say(f"public language model: perplexity {facts['perplexity']}")
    return model


def public_choice(bench: Bench, data: Path) -> dict:
    """Settings that bring rows nearest to public movie plots in the records' place.

    First how shots are drawn, then where and how far that is steered; nothing private is read.
    """
    cohort = plots(bench, data)
    tried: dict[str, float] = {}
    draws = {}
    for shots, kept in DRAWS_TRIED:
        settings = {"shots": shots, "kept_shots": kept}
        name = f"{shots} of {kept} shots"
        tried[name] = public_energy(bench, cohort, {"use_vectors": False, **settings}, {})
        draws[name] = settings
    best_draws = draws[min(draws, key=tried.__getitem__)]
    middle = np.linspace(0, bench.base.engine.layers - 1, LAYERS_TRIED + 2)[1:-1]
    steerings = {}
    for layer in sorted({round(each) for each in middle}):
        for strength in STRENGTHS_TRIED:
            settings = {"layers": (layer,), **best_draws}
            name = f"layer {layer}, strength {strength:g}"
            tried[name] = public_energy(bench, cohort, settings, {"strengths": (strength,)})
            steerings[name] = {"layers": [layer], "strengths": [strength]}
    best = min(steerings, key=tried.__getitem__)
    return {"draws": best_draws, "steering": steerings[best], "energy": tried[best], "tried": tried}


def public_energy(bench: Bench, cohort: Cohort, settings: dict, writing: dict) -> float:
    """Energy distance of rows at ε = 5 to held-out public text; stages are shared by settings."""
    size = bench.size
    config = EpsVecConfig(
        candidates=size.candidates, negatives=size.negatives, clip_documents=size.clip_documents,
        rows=size.rows, max_document_tokens=size.tokens, max_new_tokens=size.tokens,
        prompt=bench.prompt, **settings,
    )  # fmt: skip
    rows = public_run(bench, cohort, config).rows(size.rows, **writing)
    return scores(rows, cohort, bench.base, repeats=1)["energy"]


def plots(bench: Bench, data: Path) -> Cohort:
    """Movie plots as a cohort without labels."""
    whole = pl.read_parquet(data / "wikipedia_movies.parquet")["extract"].drop_nulls()
    cut = [text for text in (next(pieces(plot, CHARACTERS), None) for plot in whole) if text]
    count = 2 * bench.size.records_per_class
    texts = cut[: count + bench.size.test_rows]
    both = embedded(bench.base.embedder, texts, [""] * len(texts))
    return Cohort(
        name="movies",
        train=both.take(range(count)),
        test=both.take(range(count, len(both.texts))),
        labels=("",),
        label_texts=("",),
    )


def public_run(bench: Bench, cohort: Cohort, config: EpsVecConfig):
    """The method at ε = 5 on public text; nothing is at stake."""
    method = EpsVec(config, cohort.terms(5.0))
    return released(bench.base, method, method.plan(5.0), cohort.private())


def report(results: Results, arguments: argparse.Namespace) -> str:
    """One table a corpus and ε; means over seeds."""
    chosen = results.units.get("chosen on public text", {})
    parts = [f"Chosen on public text: {chosen.get('draws')}, {chosen.get('steering')}.\n"]
    for dataset in arguments.datasets.split(","):
        for epsilon in map(float, arguments.epsilons.split(",")):
            lines = []
            for row in (REAL, *EPSVEC_ROWS, *PREDICTION_ROWS):
                at = "" if row in (REAL, "zero-shot") else f" ε={epsilon:g}"
                found = [
                    results.units[unit]
                    for seed in range(arguments.seeds)
                    if (unit := f"{dataset} seed {seed}{at} {row}") in results.units
                ]
                if found:
                    names = ("rows_written", "rows", "mauve", "energy", "accuracy", "seconds")
                    spent = "∞" if row == REAL else mean_of(found, "epsilon")
                    lines.append([row, spent, *[mean_of(found, name) for name in names]])
            header = [f"{dataset}, ε = {epsilon:g}", "ε by the ledger", "rows written"]
            parts.append(table([*header, "scored", *NAMES, "seconds"], lines))
    return "\n".join(parts)


def mean_of(found: list[dict], name: str) -> float | int | None:
    """Mean over the seeds that have it; whole numbers stay whole for one seed."""
    values = [each[name] for each in found if each.get(name) is not None]
    if not values:
        return None
    return values[0] if len(values) == 1 else float(np.mean(values))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="sized for two cores, 25 minutes")
    parser.add_argument("--tiny", action="store_true", help="toy sizes: does it run at all")
    parser.add_argument("--datasets", default="yelp,ag_news")
    parser.add_argument("--epsilons", default="5,3")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument(
        "--parts", default=",".join(PARTS), help="rows to take: " + ", ".join(PARTS)
    )
    parser.add_argument("--minutes", type=float, default=60.0, help="start no row after this")
    parser.add_argument("--language-model", default=None, help="folder or hub id")
    parser.add_argument("--prompt", default="document", choices=("document", "base", "instruction"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--output", default=str(project_root() / ".dpsynth" / "epsvec_table"))
    parser.add_argument("--report", action="store_true", help="only render what is there")
    return parser.parse_args()


if __name__ == "__main__":
    main()
