"""Synthetic corpora of real text, scored beside one another: any method, one command.

    PYTHONPATH=. python benchmarks/real_text/table.py --methods ctcl dp_fine_tuning resampled \
        --cohorts yelp_category --epsilons 1 3 10 --sizes small --seeds 2
    PYTHONPATH=. python benchmarks/real_text/table.py --preset ctcl

Methods run as `run_method` runs them; ε is what the label of each run states. `--preset` takes the
lines, cohorts and ε of a table in docs/benchmarks.md, and what else is given overrides them.
References may stand among the methods: real_data, public_only, public_generator and
one_real_example. A method may carry settings: 'epsvec:{"shots": 1}'. `--generator` says what
fine-tuning starts from: the base's language model behind its prompts; the same weights behind
lines of aspects (plain); or these, trained further on public pairs of such lines and texts (pairs).

Every finished corpus is kept in --work with its scores: a run that is cut goes on from there, and
--report prints what is there. All corpora of a cohort are scored on the same number of rows: the
smallest that any of them has, or --score-rows, where one with fewer has no scores. ± is the
standard deviation of a mean over resampled seeds and, for MAUVE, energy distance and accuracies,
resampled rows.

Needs the real corpora: DPSYNTH_REAL_DATA, or ../shared/data beside the project.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from cohorts import COHORTS, Cohort, load_cohort, public_documents
from presets import PRESETS, SIZES, Entry, Preset, Size, of_method
from references import public_generator
from transformers.utils.logging import disable_progress_bar

from dpsynth_assets.benchmark.cells import Cell, found_cell, make_cell, score_cell, stands
from dpsynth_assets.benchmark.cohorts import REFERENCES, Bench
from dpsynth_assets.benchmark.leaderboard import CEILING, FLOOR, Line, line_of
from dpsynth_assets.files.kept import JSON, found
from dpsynth_assets.metrics.comparison import Compared, interval_rule, shares
from dpsynth_assets.metrics.metric import Estimate
from dpsynth_assets.metrics.registry import compared
from dpsynth_assets.paths import project_root
from dpsynth_assets.public_base import PublicBase
from dpsynth_assets.public_base.making import packaged_model

PAIRS = 2_560
"""Public pairs that a generator is trained further on, each seen once."""
COLUMNS = {
    "rows": ("rows", ".0f"),
    "posterior_ratio": ("r/p of a secret", ".3g"),
    "ex_post_epsilon": ("ex-post, beside its histogram", ".2f"),
    "accuracy": ("accuracy", ".3f"),
    "next_word_accuracy": ("next word", ".3f"),
    "next_word_perplexity": ("perplexity", ".3g"),
    "mauve": ("MAUVE", ".3f"),
    "energy_distance": ("energy distance", ".4f"),
    "frechet_distance": ("FID", ".3f"),
    "length_distance": ("length distance (words)", ".1f"),
    "parse_rate": ("parses", ".2f"),
    "validation_rate": ("validates", ".2f"),
    "processor_seconds": ("processor s", ".0f"),
}

REFERENCES["public_generator"] = public_generator


def _facts(folder: Path, cell: Cell) -> dict[str, Any] | None:
    """Facts of a corpus that this code need not make again; None: it is to be made."""
    facts = found(folder / "cells" / f"{cell.name}.json", JSON.read)
    return facts if stands(facts) else None


def _made_rows(folder: Path, cell: Cell) -> int:
    """Rows of a kept corpus; 0 if there is none."""
    rows = folder / "rows" / f"{cell.name}.parquet"
    return pl.scan_parquet(rows).select(pl.len()).collect().item() if rows.exists() else 0


@dataclass(frozen=True, kw_only=True)
class Table:
    """What is measured: cohorts, lines, ε, seeds, all at one size."""

    size: Size
    preset: Preset
    options: argparse.Namespace

    def scored_rows(self, cohort: Cohort) -> int:
        """Rows that every corpus of a cohort is scored on: the smallest number that is there."""
        if self.options.score_rows:
            return int(self.options.score_rows)
        made = (_made_rows(self.options.work, cell) for cell, _, _ in self.chosen(cohort))
        return min([self.size.rows, *(rows for rows in made if rows > 0)])

    def shared(self, cohort: Cohort) -> dict[str, Any]:
        """What all corpora of a cohort depend on: another size or model makes other cells."""
        size = {name: value for name, value in vars(self.size).items() if name != "next_word"}
        shared = {"size": size, "model": self.options.language_model, "records": cohort.version}
        generator = self.options.generator
        return shared if generator == "language_model" else {**shared, "generator": generator}

    def chosen(self, cohort: Cohort) -> Iterator[tuple[Cell, str, dict[str, Any] | None]]:
        """Each line's cell, title and facts: of its choices, the first that is not refused."""
        for cells, title in self.cells(cohort):
            for cell in cells:
                facts = _facts(self.options.work, cell)
                if facts is None or "refusal" not in facts:
                    break
            yield cell, title, facts

    def cells(self, cohort: Cohort) -> Iterator[tuple[list[Cell], str]]:
        """Cells of each line with its title, whole tables seed after seed.

        Those of one line differ by settings that are tried in turn.
        """
        shared = self.shared(cohort)
        for seed in range(self.options.seeds):
            done = set()
            for budget in self.preset.epsilons:
                for entry in self.preset.entries(self.size, budget):
                    epsilon = None if entry.method in REFERENCES else entry.epsilon or budget
                    cells = [
                        Cell(
                            table=shared, cohort=cohort.name, method=entry.method,
                            settings=settings, declared=entry.declared, epsilon=epsilon,
                            delta=self.preset.delta, seed=seed,
                        )
                        for settings in entry.choices
                    ]  # fmt: skip
                    if cells[0].name not in done:
                        done.add(cells[0].name)
                        yield cells, entry.title


def main() -> None:
    options = arguments()
    disable_progress_bar()
    table = asked(options)
    options.work.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("DPSYNTH_HOME", str(options.work / "home"))
    deadline = time.monotonic() + 60 * options.minutes
    for name in table.preset.cohorts:
        cohort = load_cohort(name, table.size.records, table.size.held_out, table.preset.per_label)
        if not options.report:
            measure(table, cohort, deadline)
        print(section(table, cohort), flush=True)


def measure(table: Table, cohort: Cohort, deadline: float) -> None:
    """Makes the corpora that are not there yet, until the time is up, then scores what is there."""
    bench = None
    for cells, title in table.cells(cohort):
        for cell in cells:
            facts = _facts(table.options.work, cell)
            if facts is None and time.monotonic() <= deadline:
                bench = bench or opened(table, cohort)
                facts = make_cell(bench, cell)
                _print(cell, title, facts)
            if facts is None or "refusal" not in facts:
                break
    rows = table.scored_rows(cohort)
    for cell, title, facts in table.chosen(cohort):
        if facts is not None and not stands(found_cell(table.options.work, cell, rows)):
            bench = bench or opened(table, cohort)
            bench.scored_rows = rows
            _print(cell, title, score_cell(bench, cell))


def _print(cell: Cell, title: str, result: Mapping[str, Any]) -> None:
    shown = {key: value for key, value in result.items() if key in COLUMNS or key == "refusal"}
    print(f"{cell.name} ({title}): {json.dumps(shown)}", flush=True)


def opened(table: Table, cohort: Cohort) -> Bench:
    """The public base of a cohort: documents, and models that are made when first asked for."""
    size, options = table.size, table.options
    model: dict[str, Any] = {"device": options.device}
    if options.language_model != "smollm2":
        model |= {"kind": "pretrained", "model": options.language_model}
    words = list(cohort.labels.values())
    public = PublicBase(
        None if size.invented else public_documents(cohort.name, size.documents),
        name="real_text",
        domain=cohort.domain,
        **({"invented": {"documents": size.documents, "labels": words}} if size.invented else {}),
        language_model=model,
        text_embedder={"max_tokens": 64},
        clusters={"count": size.clusters},
        topic_model={"settings": dict(size.topics)},
        conditional_generator=generator_spec(table, cohort),
    )
    return Bench(
        folder=options.work,
        cohort=cohort,
        public=public,
        rows=size.rows,
        scored_rows=table.scored_rows(cohort),
        next_word=size.next_word,
    )


def generator_spec(table: Table, cohort: Cohort) -> dict[str, Any]:
    """The generator that fine-tuning starts from: by default the model that writes."""
    options, spec = table.options, {"device": table.options.device}
    if options.generator == "language_model":
        return spec
    smollm2 = options.language_model == "smollm2"
    weights = str(packaged_model()) if smollm2 else options.language_model
    spec |= {"kind": "pretrained", "model": weights}
    if options.generator == "plain":
        return spec
    sys.path.append(str(project_root() / "benchmarks"))
    from pair_training.pairs import ConditionSource, write_pairs

    documents = public_documents(cohort.name, PAIRS)
    path = options.work / f"pairs-{cohort.name}.parquet"
    source = ConditionSource.of(documents, None, None, topic_share=0)
    write_pairs(source, documents["text"].to_list(), path, draws=1)
    steps = {"steps": documents.height // 32, "batch": 32, "learning_rate": 2e-5}
    return {**spec, "pairs": {"path": str(path), "condition": "condition", **steps}}


def section(table: Table, cohort: Cohort) -> str:
    """Markdown: one line for each method and ε with ±, and what the lines decide."""
    lines: dict[tuple[str, float | None], list[Mapping[str, Any]]] = {}
    roles, rows = {}, table.scored_rows(cohort)
    for cell, title, _ in table.chosen(cohort):
        kept = found_cell(table.options.work, cell, rows)
        if kept is not None:
            roles[cell.method] = title
            lines.setdefault((title, cell.epsilon), []).append(_with_ratio(kept))
    if not lines:
        return f"\n**{cohort.name}**: no results yet."
    scores = {line: line_of(results, list(COLUMNS)) for line, results in lines.items()}
    told = f"{cohort.source.height} records, {cohort.held_out.height} held out"
    parts = [f"\n**{cohort.name}** ({told}, every corpus scored on {rows} rows)\n"]
    parts += _table_lines(lines, scores, roles)
    seeds = max(len(results) for results in lines.values())
    parts += [f"\n{sentence}" for sentence in sentences(scores, roles, seeds)]
    refused = [r["refusal"] for results in lines.values() for r in results if "refusal" in r]
    return "\n".join([*parts, *(f"\nRefused: {line}" for line in dict.fromkeys(refused))])


def sentences(
    lines: Mapping[tuple[str, float | None], Line], roles: Mapping[str, str], seeds: int
) -> list[str]:
    """What is decided at each ε, references included; the rule of the verdicts last."""
    budgets = list(dict.fromkeys(epsilon for _, epsilon in lines if epsilon is not None))
    told = []
    asked: list[float | None] = [*budgets]
    for budget in asked or [None]:
        beside = {t: line for (t, epsilon), line in lines.items() if epsilon in (budget, None)}
        ends = [roles.get(role) if roles.get(role) in beside else None for role in (FLOOR, CEILING)]
        at = "" if budget is None else f"ε = {budget:g}. "
        told += [f"{at}{sentence}" for sentence in Compared(beside, *ends).verdicts()]
    return [*told, interval_rule("seeds and rows" if seeds > 1 else "rows")] if told else []


def _table_lines(
    lines: Mapping[tuple[str, float | None], Sequence[Mapping[str, Any]]],
    scores: Mapping[tuple[str, float | None], Line],
    roles: Mapping[str, str],
) -> Iterator[str]:
    """Head and lines; a share of the gap only in columns where one can be told."""
    columns = {
        name: column
        for name, column in COLUMNS.items()
        if any(name in line for line in scores.values())
    }
    ends = [scores.get((roles.get(role, ""), None)) for role in (FLOOR, CEILING)]
    closed = {key: shares(line, *ends) for key, line in scores.items() if key[1] is not None}
    gaps = {m: each.title for m, each in compared().items() if any(f[m] for f in closed.values())}
    head = ("corpus", "ε", *(title for title, _ in columns.values()))
    yield _line((*head, *(f"{title} gap closed" for title in gaps.values())))
    yield "|" + "---|" * (len(head) + len(gaps))
    for key, line in scores.items():
        stated = [r["epsilon"] for r in lines[key] if r.get("epsilon") is not None]
        values = [_shown(line.get(name), form) for name, (_, form) in columns.items()]
        found = closed.get(key, {})
        shown = [str(found.get(metric) or "") for metric in gaps]
        yield _line((key[0], f"{np.mean(stated):.3g}" if stated else "", *values, *shown))


def _shown(score: Estimate | None, form: str) -> str:
    """Mean and ±; the mean alone where nothing was resampled, or all values are equal."""
    if score is None:
        return ""
    mean = format(score.value, form)
    varies = score.std > 1e-9 * abs(score.value)  # Equal values differ by rounding.
    return f"{mean} ± {score.std:{form}}" if varies else mean


def _with_ratio(result: Mapping[str, Any]) -> dict[str, Any]:
    """r/p beside r: how many times likelier a guess becomes."""
    if result.get("posterior") is None:
        return dict(result)
    return {**result, "posterior_ratio": result["posterior"] / result["guarantee"]["prior"]}


def _line(values: Sequence[str]) -> str:
    return f"| {' | '.join(values)} |"


def asked(options: argparse.Namespace) -> Table:
    """The table that the options describe."""
    size = SIZES[options.sizes]
    preset = PRESETS[options.preset] if options.preset else _of_methods(options)
    if options.sizes == "tiny":
        preset = replace(preset, per_label=preset.per_label and 40)
    else:
        size = replace(size, **preset.size)
    if options.per_label is not None:
        preset = replace(preset, per_label=options.per_label)
    if options.records is not None:
        size = replace(size, records=options.records)
    if options.batches is not None:
        size = replace(size, batches=options.batches)
    if options.contexts is not None:
        size = replace(size, contexts=options.contexts)
    given = {"cohorts": options.cohorts, "epsilons": options.epsilons, "delta": options.delta}
    preset = replace(preset, **{name: tuple(value) if isinstance(value, list) else value
                                for name, value in given.items() if value is not None})  # fmt: skip
    return Table(size=size, preset=preset, options=options)


def _of_methods(options: argparse.Namespace) -> Preset:
    if not options.methods or not options.cohorts:
        raise SystemExit("Expected --preset, or --methods with --cohorts.")

    def entries(size: Size, _epsilon: float) -> list[Entry]:
        return [_entry(size, text) for text in options.methods]

    return Preset(entries=entries, cohorts=(), epsilons=(10.0,))


def _entry(size: Size, text: str) -> Entry:
    """A method or a reference by name, with settings behind a colon."""
    name, _, given = text.partition(":")
    if name in REFERENCES:
        return Entry(title=name, method=name)
    entry = of_method(size, name)
    settings = {**entry.settings, **(json.loads(given) if given else {})}
    if settings.pop("rows", size.rows) != size.rows:
        raise SystemExit(f"Expected no rows in {text}, since --sizes says how many, got some.")
    return replace(entry, title=text, settings=settings)


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--preset", choices=list(PRESETS))
    parser.add_argument("--methods", nargs="+", help="methods or references, with settings or not")
    parser.add_argument("--cohorts", nargs="+", choices=list(COHORTS))
    parser.add_argument("--epsilons", nargs="+", type=float)
    parser.add_argument("--delta", type=float, help="δ; default 1e-6, or the preset's")
    parser.add_argument("--sizes", choices=list(SIZES), default="small")
    parser.add_argument("--records", type=int, help="most source records")
    parser.add_argument("--per-label", type=int, help="source records of each label")
    parser.add_argument("--batches", type=int, help="most batches of private prediction")
    parser.add_argument("--contexts", type=int, help="contexts of a batch at ε = 10, s")
    parser.add_argument(
        "--score-rows",
        type=int,
        help="rows that every corpus is scored on; default: the fewest of any",
    )
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=60, help="start no corpus after this")
    parser.add_argument("--language-model", default="smollm2", help="or a folder or a hub id")
    generators = ["language_model", "plain", "pairs"]
    parser.add_argument("--generator", choices=generators, default=generators[0])
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda")
    parser.add_argument("--report", action="store_true", help="only print what is there")
    work = project_root() / ".dpsynth" / "real_text"
    parser.add_argument("--work", type=Path, default=work, help="where everything is kept")
    return parser.parse_args(argv)


if __name__ == "__main__":
    main()
