"""Runs files that the product has never seen with what `init` writes, as a stranger would.

    PYTHONPATH=. python benchmarks/strangers.py --to build/strangers [--corpora yelp ag_news]
        [--seeds 0 1] [--epsilon 4] [--records 3000] [--data ../shared/data]
    PYTHONPATH=. python benchmarks/strangers.py --to build/strangers --marks READ.csv READ.csv
    PYTHONPATH=. python benchmarks/strangers.py --to build/strangers --evidence
    PYTHONPATH=. python benchmarks/strangers.py --rules ROWS.parquet

Each corpus and seed is a plain CSV file of its own, a home of its own and a dataset file by
`dpsynth init` with --records, --public-labels, --domain and --epsilon alone; the seed chooses the
records. `dpsynth run` then does the rest. A line for every row of its table is appended to
`lines.jsonl`: scores, the share of the gap between the floor (public only) and the ceiling (one
real record in the prompt), rows an hour of the whole run, distinct 3-grams, and the median distance
to the nearest row of the same corpus and to the nearest record. What has its lines is not run
again, and a run that was killed goes on where it stopped.

Beside them lies `reading.csv`: 60 rows, 60 records that no method read and 60 rows of public only,
cut to one length and mixed; `key.json` says what is what. A reader who sees reading.csv alone
writes yes or no into its column `mark` (could this be a record of this kind?); --marks prints the
shares by origin. --evidence puts the shares of the gap, one mean a corpus and method, into the file
that `dpsynth advise` reads; what it says of others stays. --rules applies the public rules alone to
rows that are there already, and shows ten before and after.
"""

import argparse
import csv
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from dpsynth_assets.advice.evidence import FILES
from dpsynth_assets.methods.capabilities import DeclaredFacts
from dpsynth_assets.methods.registry import REGISTRY
from dpsynth_assets.methods.rejection_sampling import RejectionSettings, RowFilter, kept_rows
from dpsynth_assets.models.row_rules import trimmed

READ_OF_EACH = 60
SCORES = ("mauve", "accuracy")
FLOOR, CEILING, REAL = "public only", "non-private", "real data"


@dataclass(frozen=True)
class Stranger:
    """A corpus as a stranger would bring it.

    Attributes:
        file: Name of its parquet file.
        domain: What its texts are, in public words.
        label: Name of the label column.
        records: Takes columns `text` and the label out of the file.
    """

    file: str
    domain: str
    label: str
    records: Callable[[pl.DataFrame], pl.DataFrame]


GENRES = ("Comedy", "Drama", "Western", "Horror", "Crime")


def films(found: pl.DataFrame) -> pl.DataFrame:
    """Films whose first genre is a frequent one."""
    first = pl.col("genres").list.first()
    return found.filter(first.is_in(GENRES), pl.col("extract").str.len_chars() > 80).select(
        text="extract", genre=first
    )


STRANGERS = {
    "yelp": Stranger(
        "yelp_reviews",
        "Reviews of local businesses",
        "category",
        lambda found: found.select("text", "category"),
    ),
    "ag_news": Stranger(
        "ag_news", "Short news reports", "topic", lambda found: found.select("text", "topic")
    ),
    "headlines": Stranger(
        "abc_news",
        "Opening sentences of rural and science news",
        "category",
        lambda found: found.select("text", "category"),
    ),
    "films": Stranger("wikipedia_movies", "Descriptions of films", "genre", films),
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--to", type=Path, help="folder of homes, files and lines")
    data = os.environ.get("DPSYNTH_REAL_DATA") or "../shared/data"
    parser.add_argument("--data", type=Path, default=Path(data), help="folder of real corpora")
    parser.add_argument("--corpora", nargs="+", choices=STRANGERS, default=list(STRANGERS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--epsilon", type=float, default=4.0)
    parser.add_argument("--records", type=int, default=3_000)
    parser.add_argument("--marks", nargs="+", type=Path, help="marked copies of reading.csv")
    parser.add_argument("--evidence", action="store_true", help="tell advice what was measured")
    parser.add_argument("--rules", type=Path, help="rows that are there already")
    options = parser.parse_args()
    if options.rules is None and options.to is None:
        parser.error("expected --to FOLDER, got none")
    if not (options.rules or options.marks or options.evidence or options.data.is_dir()):
        parser.error(f"expected the real corpora in --data, got no folder {options.data}")
    return options


def main() -> None:
    options = arguments()
    if options.rules:
        show_rules(pl.read_parquet(options.rules))
    elif options.marks:
        for file in options.marks:
            print(json.dumps(marked(file)))
    elif options.evidence:
        write_evidence(options.to / "lines.jsonl")
    else:
        lines = options.to / "lines.jsonl"
        options.to.mkdir(parents=True, exist_ok=True)
        for seed in options.seeds:
            for name in options.corpora:
                if (name, seed) not in done(lines):
                    append(lines, run(name, seed, options))


def done(lines: Path) -> set[tuple[str, int]]:
    """Corpora and seeds that have their lines."""
    read = lines.read_text().splitlines() if lines.exists() else []
    return {(line["corpus"], line["seed"]) for line in map(json.loads, read)}


def append(lines: Path, found: Iterable[dict[str, Any]]) -> None:
    written = "".join(json.dumps(each) + "\n" for each in found)
    with lines.open("a") as file:
        file.write(written)
    print(written, end="", flush=True)


def run(name: str, seed: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Writes the file, lets the product do the rest, and reads what it printed."""
    stranger, folder = STRANGERS[name], options.to / f"{name}-{seed}"
    records, others = split(stranger, options, seed)
    folder.mkdir(parents=True, exist_ok=True)
    records.write_csv(folder / f"{name}.csv")
    home = folder / "home"
    environment = os.environ | {
        "DPSYNTH_HOME": str(home),
        "DAGSTER_HOME": str(home / "dagster"),
        "DPSYNTH_DATASETS": str(folder / "datasets"),
    }
    (home / "dagster").mkdir(parents=True, exist_ok=True)
    (folder / "datasets").mkdir(exist_ok=True)
    if not (folder / "datasets" / name / "defs.yaml").exists():
        labels = ",".join(f'"{each}"' for each in sorted(set(records[stranger.label])))
        product(
            "init", name, "--from", str(folder / f"{name}.csv"),
            "--records", str(records.height), "--public-labels", f"{stranger.label}={labels}",
            "--domain", stranger.domain, "--epsilon", str(options.epsilon),
            environment=environment,
        )  # fmt: skip
    started = time.monotonic()
    printed = product("run", name, "--yes", "--json", environment=environment)
    seconds = clock(folder / "seconds.json", time.monotonic() - started)
    table = json.loads(printed[printed.index("{") :])["rows"]
    corpora = {file.parts[-3]: pl.read_parquet(file)["text"].to_list() for file in home.glob(
        f"released/{name}/*/data/*.parquet"
    )}  # fmt: skip
    public = pl.read_parquet(home / f"artifacts/{name}/references/public_only_corpus.parquet")
    unseen = others["text"].to_list()
    texts = {**corpora, FLOOR: public["text"].to_list(), REAL: unseen}
    best = max(
        (row for row in table if row["name"] in corpora), key=lambda row: row.get("mauve") or 0.0
    )
    write_reading(folder, texts[best["name"]], unseen, texts[FLOOR], seed)
    return [
        {"corpus": name, "seed": seed, **line(row, table, seconds)}
        | nearest(texts.get(row["name"], []), records["text"].to_list())
        for row in table
    ]


def split(
    stranger: Stranger, options: argparse.Namespace, seed: int
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Records of the file, and others that no method sees."""
    found = stranger.records(pl.read_parquet(options.data / f"{stranger.file}.parquet"))
    mixed = found.drop_nulls().unique("text", maintain_order=True)
    mixed = mixed.sample(fraction=1.0, shuffle=True, seed=seed)
    return mixed.head(options.records), mixed.slice(options.records, 10 * READ_OF_EACH)


def product(*words: str, environment: dict[str, str]) -> str:
    """Runs the command line; what it says of progress goes on to the terminal."""
    program = [sys.executable, "-c", "from dpsynth_assets.cli.main import main; main()"]
    ran = subprocess.run(
        [*program, *words], env=environment, stdout=subprocess.PIPE, text=True, check=False
    )
    if ran.returncode:
        raise SystemExit(f"dpsynth {words[0]} ended with {ran.returncode}: {ran.stdout[-2000:]}")
    return ran.stdout


def clock(file: Path, seconds: float) -> float:
    """Adds the time of this run to that of earlier ones that were killed."""
    whole = seconds + (json.loads(file.read_text()) if file.exists() else 0.0)
    file.write_text(json.dumps(whole))
    return whole


def line(row: dict[str, Any], table: Sequence[dict[str, Any]], seconds: float) -> dict[str, Any]:
    """One line: a row of the table with its shares of the gaps."""
    by_name = {each["name"]: each for each in table}
    kept = ("name", "epsilon", "rows", "distinct_3", "mean_words", "near_duplicate_share")
    found = {key: row.get(key) for key in kept}
    for score in SCORES:
        found[score], found[f"{score}_std"] = row.get(score), row.get(f"{score}_std")
        low, high = (by_name.get(each, {}).get(score) for each in (FLOOR, CEILING))
        if None not in (low, high, row.get(score)) and high > low:
            found[f"{score}_gap"] = round((row[score] - low) / (high - low), 3)
    found["rows_an_hour"] = round(3600 * row["rows"] / seconds) if row.get("rows") else None
    return found


def nearest(rows: Sequence[str], records: Sequence[str]) -> dict[str, float]:
    """Median distance of a row to the nearest other row, and to the nearest record.

    Distances are 1 - cosine of weighted word counts: they need no model, and near copies are 0.
    """
    if len(rows) < 2:
        return {}
    from sklearn.feature_extraction.text import TfidfVectorizer

    words = TfidfVectorizer(sublinear_tf=True).fit(records)
    own, others = words.transform(rows), words.transform(records)
    among = (own @ own.T).toarray()
    np.fill_diagonal(among, -1.0)
    to_records = (own @ others.T).toarray()
    return {
        "nearest_row": round(float(np.median(1 - among.max(axis=1))), 3),
        "nearest_record": round(float(np.median(1 - to_records.max(axis=1))), 3),
    }


def write_reading(
    folder: Path, rows: Sequence[str], records: Sequence[str], public: Sequence[str], seed: int
) -> None:
    """Writes rows of three origins in one order that nobody chose, and the key beside them."""
    draw, longest = random.Random(seed), max(map(len, rows))
    mixed = []
    for origin, texts in (("rows", rows), ("records", records), ("public", public)):
        cut = [
            trimmed(" ".join(text.split())[:longest], ended=len(text) <= longest) for text in texts
        ]
        worded = [text for text in cut if text]
        mixed += [(text, origin) for text in draw.sample(worded, min(READ_OF_EACH, len(worded)))]
    draw.shuffle(mixed)
    with (folder / "reading.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["number", "text", "mark"])
        writer.writerows([number, text, ""] for number, (text, _) in enumerate(mixed))
    (folder / "key.json").write_text(json.dumps([origin for _, origin in mixed]))


def marked(file: Path) -> dict[str, Any]:
    """Shares of each origin that a reader marked; the key lies beside the file.

    Raises:
        SystemExit: A mark is missing or neither yes nor no.
    """
    key = json.loads((file.parent / "key.json").read_text())
    yes: dict[str, list[bool]] = {}
    with file.open(newline="") as read:
        for row in csv.DictReader(read):
            mark = row["mark"].strip().lower()
            if mark not in {"yes", "no"}:
                raise SystemExit(
                    f"{file}: expected mark yes or no in row {row['number']}, got {row['mark']!r}."
                )
            yes.setdefault(key[int(row["number"])], []).append(mark == "yes")
    shares = {origin: round(sum(marks) / len(marks), 3) for origin, marks in sorted(yes.items())}
    return {"reading": str(file), "of_each": READ_OF_EACH, "marked": shares}


def write_evidence(lines: Path) -> None:
    """Puts each method's mean shares into the file that advice reads."""
    (*_, file) = FILES
    known = json.loads(file.read_text()) if file.exists() else {"domains": {}, "lines": []}
    measured: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for each in map(json.loads, lines.read_text().splitlines()):
        if each["name"] in REGISTRY:
            measured.setdefault((each["corpus"], each["name"]), []).append(each)
    for (corpus, method), seeds in measured.items():
        (candidate, *_) = REGISTRY[method].advice.candidates(DeclaredFacts(rows=seeds[0]["rows"]))
        told = {
            "dataset": f"{corpus}_file",
            "line": candidate.line,
            "asked_epsilon": round(seeds[0]["epsilon"], 2),
            "records": 3_000,
            "seeds": len(seeds),
            "promise": "worst case",
            "gap_closed": {score: mean_share(seeds, f"{score}_gap") for score in SCORES},
            "costs": {"rows": seeds[0]["rows"]},
        }
        place = told["dataset"], told["line"]
        kept = [line for line in known["lines"] if (line["dataset"], line["line"]) != place]
        known["lines"] = [*kept, told]
        known["domains"][told["dataset"]] = STRANGERS[corpus].domain
    file.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")


def mean_share(seeds: Sequence[dict[str, Any]], key: str) -> dict[str, float]:
    """Mean of the seeds, with the least and the greatest of them."""
    shares = [each[key] for each in seeds]
    return {"value": float(np.mean(shares)), "low": min(shares), "high": max(shares)}


def show_rules(rows: pl.DataFrame) -> None:
    """Prints ten rows as they were, and ten of those that are kept."""
    bare = [trimmed(text, ended=True) for text in rows["text"]]  # Which were cut is not known here.
    kept, facts = kept_rows(
        rows.with_columns(text=pl.Series(bare)), RowFilter(settings=RejectionSettings())
    )
    for name, frame in (("before", rows), ("after", kept)):
        print(f"{name}: {frame.height} rows")
        for text in frame.head(10)["text"]:
            print(f"  - {text}")
    print(json.dumps({key: facts[key] for key in ("acceptance_rate", "turned_down")}))


if __name__ == "__main__":
    main()
