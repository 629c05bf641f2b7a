"""Measures the stages that grow with the number of records: time, memory and bytes, by n.

    PYTHONPATH=. python benchmarks/growth.py [--records 10000 100000 1000000] [--parts 64]
        [--embed 1000 10000] [--folder FOLDER] [--json FILE] [--plot FILE] [--pairs 1000000]
        [--cold]
    PYTHONPATH=. python benchmarks/growth.py --read FILE [--plot FILE]

Short records (a dozen words, three of a unit on average) come from a seeded generator, as a Parquet
file. Each stage runs in a process of its own, on one thread, with one worker in that process:

    sort          read the source, hash each unit, write rows to their parts (the driver's pass)
    canonical     rules, bounds, held-out units, digests, fingerprints; part by part
    fingerprints  join and compare the fingerprints of all texts (the driver)
    note          contribution table: hashes of ids; part by part
    cells         nearest of 100 centres and histogram by label; part by part, noise once
    votes         nearest of 1000 candidates; part by part, noise once
    embed         all-MiniLM-L6-v2 in int8, at the sizes of --embed only

Embeddings of the other stages are random unit vectors, written beforehand and not timed. Prints
seconds of the clock and of the processor, the peak memory of every process (VmHWM), bytes written
a record, and the slope of log time against log n. --cold repeats cells and votes three times with
the embeddings in the memory that the system keeps files in, and three times after it has dropped
them; the seconds of the kernel and the bytes that came from the disk are told apart. --pairs
repeats the stages of one n with two workers, in turn with one worker: if both take the processor
seconds of one, the work was divided without loss, on a busy machine too.

Then a model, fitted to these runs by least squares of relative errors: a stage takes a + b n
seconds of a processor; the driver's stages (sort, fingerprints) stay on one; the others take
(a + b n) / w on w workers, and besides what each of two workers took beyond its half in --pairs
(libraries are loaded, parts handed out). It says what 10^7 records take on 1, 8 and 64 workers that
have a processor each. That parts are equally large, and that disks keep up with w workers, is taken
for granted.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np

DRIVER, SHARED = ("sort", "fingerprints"), ("canonical", "note", "cells", "votes")
READING = ("cells", "votes")
STAGES = ("sort", "canonical", "fingerprints", "note", "cells", "votes")
LABELS = ("good", "bad")
DIMENSION, CENTERS, CANDIDATES = 384, 100, 1_000
WORDS_A_RECORD, RECORDS_A_UNIT, BOUND, HELD_OUT = 12, 3, 2, 0.1
CHUNK = 100_000
MANIFEST = {"model": None, "max_tokens": 64}
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "POLARS_MAX_THREADS")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--embed", type=int, nargs="*", default=[1_000, 10_000])
    parser.add_argument("--parts", type=int, default=64)
    parser.add_argument("--folder", type=Path, help="where records and parts lie, then removed")
    parser.add_argument("--json", type=Path, help="where the figures are kept")
    parser.add_argument("--read", type=Path, help="figures of an earlier run, instead of a run")
    parser.add_argument("--plot", type=Path, help="picture of time by n")
    parser.add_argument("--pairs", type=int, help="one n whose stages two workers do as well")
    parser.add_argument("--cold", action="store_true", help="cells and votes from the disk, too")
    parser.add_argument("--stage", help=argparse.SUPPRESS)
    parser.add_argument("--workers", type=int, default=1, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    options = arguments()
    if options.stage:
        print(json.dumps(one_stage(options)))
        return
    rows = json.loads(options.read.read_text()) if options.read else measured(options)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    report(rows)
    if options.plot:
        plot(rows, options.plot)


def measured(options: argparse.Namespace) -> list[dict]:
    """Runs every stage for every n; each n in a folder of its own."""
    rows = []
    for n in sorted({*options.records, *options.embed}):
        with tempfile.TemporaryDirectory(prefix="growth-", dir=options.folder) as folder:
            rows += of_size(options, n, Path(folder))
    return rows


def of_size(options: argparse.Namespace, n: int, folder: Path) -> list[dict]:
    bytes_of_source = write_source(folder, n)
    run = Run(options, n, folder, bytes_of_source)
    stages = STAGES if n in options.records else ("sort", "canonical")
    for stage in stages:
        if stage == "note":
            write_embeddings(folder)
        run(stage)
    if n in options.embed:
        run("embed")
    if options.cold and n in options.records:
        for stage in READING * 3:
            run(stage, reading="warm")  # Read just before.
            forget_files(folder)
            run(stage, reading="cold")
    if n == options.pairs:
        for stage in SHARED[1:] * 2:  # `canonical` uses its input up.
            for workers in (1, 2):
                run(stage, workers, paired=True)
    return run.rows


class Run:
    """Runs stages in processes of their own and keeps a row for each."""

    def __init__(self, options: argparse.Namespace, n: int, folder: Path, source: int) -> None:
        self.options, self.n, self.folder, self.source = options, n, folder, source
        self.rows: list[dict] = []

    def __call__(
        self, stage: str, workers: int = 1, *, paired: bool = False, reading: str = ""
    ) -> None:
        """Runs one stage and keeps its row."""
        command = [sys.executable, __file__, "--stage", stage, "--folder", str(self.folder)]
        command += ["--parts", str(self.options.parts), "--workers", str(workers)]
        environment = os.environ | dict.fromkeys(THREADS, "1")
        said = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
        row = {"n": self.n, "stage": stage, "workers": workers, "paired": paired}
        row |= {"reading": reading}
        row |= {"parts": self.options.parts, "source_bytes": self.source}
        row |= json.loads(said.stdout.splitlines()[-1])
        self.rows.append(row)
        print(f"# {row}", file=sys.stderr, flush=True)


def one_stage(options: argparse.Namespace) -> dict:
    """Runs one stage here and says what it took."""
    from dpsynth_assets.workers import LocalWorkers

    work = prepared(options.stage, options.folder, options.parts, LocalWorkers(options.workers))
    children = Children()
    wall, cpu, written = time.perf_counter(), time.process_time(), bytes_of("wchar")
    kernel, read = os.times().system, bytes_of("read_bytes")
    work()
    row = {
        "kernel_seconds": os.times().system - kernel,
        "disk_bytes": bytes_of("read_bytes") - read,
        "seconds": time.perf_counter() - wall,
        "processor_seconds": time.process_time() - cpu,
        "worker_seconds": of_workers(),
        "written_bytes": bytes_of("wchar") - written,
        "peak_bytes": peak_of("self"),
    }
    return row | {"worker_peak_bytes": children.largest()}


def prepared(stage: str, folder: Path, parts: int, workers):
    """Opens what a stage needs; returns the call that is timed."""
    import polars as pl

    from dpsynth_assets.files.kept import TABLE
    from dpsynth_assets.sensitive import part_tasks, read_source
    from dpsynth_assets.sensitive.fingerprints import prints_of
    from dpsynth_assets.sensitive.read_source import embed_parts
    from dpsynth_assets.sensitive.record_parts import files_of
    from dpsynth_assets.sensitive.stored_parts import StoredParts

    spec, store = declaration(folder, parts), record_parts(folder)
    places = store.begin(parts) if stage == "sort" else store.places

    def sort() -> None:
        nothing = pl.DataFrame()
        for number, pieces in enumerate(read_source.pieces_of_source(spec)):
            for part, place in enumerate(places):
                path = place / f"{part_tasks.PIECE}-{number:05d}.parquet"
                files_of(place).write(path, TABLE.write(pieces.get(part, nothing)))
        store.keep(places)

    def each(task) -> None:
        for _ in workers.map_parts(task, places):
            pass

    ways = {
        "sort": sort,
        "canonical": lambda: each(partial(part_tasks.make_canonical, spec)),
        "fingerprints": lambda: admitted(
            folder, prints_of(read_source.canonical_frames(places), spec, bytes(32))
        ),
        "note": lambda: each(part_tasks.NoteRead("r-1")),
        "embed": lambda: embed_parts(MANIFEST, places, workers, lambda *_: None),
    }
    if stage in ways:
        return ways[stage]
    count = counting(stage)
    return lambda: noisy(StoredParts(places, workers).summed(count))


def counting(stage: str):
    """What counts the records of a part: public values from a seed."""
    from dpsynth_assets.methods.evolution.votes import VoteCounts
    from dpsynth_assets.methods.shared_histograms import CellCounts

    if stage == "cells":
        kept = [range(CENTERS)] * len(LABELS)
        return CellCounts(labels=LABELS, centers=unit_vectors(CENTERS, seed=1), kept=kept)
    numbers = np.arange(CANDIDATES) % len(LABELS)
    candidates = unit_vectors(CANDIDATES, seed=2)
    return VoteCounts(labels=LABELS, candidates=candidates, candidate_labels=numbers)


def noisy(counts: np.ndarray) -> None:
    from dpsynth_assets.privacy.guarantees import NeighboringRelation
    from dpsynth_assets.privacy.histogram import NoisyHistogram

    mechanism = NoisyHistogram(
        noise="gaussian",
        scale=10.0,
        relation=NeighboringRelation.ADD_REMOVE,
        max_records_per_unit=BOUND,
    )
    mechanism.release(counts.ravel())


def admitted(folder: Path, prints) -> None:
    from dpsynth_assets.sensitive.fingerprints import Fingerprints, Reader
    from dpsynth_assets.sensitive.private_files import PrivateFiles

    base = folder / "sensitive"
    reader = Reader(cohort="growth", account="growth", dataset="growth")
    if Fingerprints(PrivateFiles(base), base).admit(reader, prints) is not None:
        raise SystemExit("Expected no other cohort.")


def declaration(folder: Path, parts: int):
    from dpsynth_assets.datasets import PrivateDatasetSpec

    return PrivateDatasetSpec.model_validate(
        {
            "name": "growth",
            "source": {"path": str(folder / "records.parquet")},
            "parts": parts,
            "columns": {"labels": ["label"]},
            "public_facts": {"labels": {"label": list(LABELS)}},
            "privacy_unit": {"column": "who", "max_records": BOUND},
            "budget": {"epsilon": 1, "delta": 1e-9},
            "held_out_fraction": HELD_OUT,
            "methods": [{"method": "mean_uniform"}],
        }
    )


def record_parts(folder: Path):
    from dpsynth_assets.sensitive.private_files import PrivateFiles
    from dpsynth_assets.sensitive.record_parts import RecordParts

    base = folder / "sensitive"
    (base / "growth").mkdir(parents=True, exist_ok=True)
    return RecordParts(PrivateFiles(base), base / "growth")


def write_source(folder: Path, n: int) -> int:
    """Writes n records, a chunk at a time; returns the bytes of their columns."""
    import polars as pl
    import pyarrow.parquet as pq

    draw = np.random.default_rng(0)
    letters = draw.integers(97, 123, size=(5_000, 7), dtype=np.uint8)
    words = np.array([row.tobytes()[: 3 + i % 5].decode() for i, row in enumerate(letters)])
    total, writer = 0, None
    for start in range(0, n, CHUNK):
        rows = min(CHUNK, n - start)
        chosen = words[draw.integers(0, len(words), size=(rows, WORDS_A_RECORD))]
        who = draw.integers(0, max(1, n // RECORDS_A_UNIT), rows)
        frame = pl.DataFrame(
            {
                "text": [" ".join(row) for row in chosen.tolist()],
                "label": np.array(LABELS)[draw.integers(0, 2, rows)].tolist(),
                "who": [f"person {number}" for number in who.tolist()],
            }
        )
        total += int(frame.estimated_size())
        table = frame.to_arrow()
        writer = writer or pq.ParquetWriter(folder / "records.parquet", table.schema)
        writer.write_table(table)
    writer.close()
    return total


def write_embeddings(folder: Path) -> None:
    """Random unit vectors for the records of every part."""
    from dpsynth_assets.sensitive.record_parts import files_of

    for number, place in enumerate(record_parts(folder).places):
        files = files_of(place)
        rows = files.read_table(place / "source.parquet").height
        vectors = unit_vectors(rows, seed=100 + number)
        files.write_array(place / "source_embeddings.npy", vectors)


def unit_vectors(rows: int, seed: int) -> np.ndarray:
    values = np.random.default_rng(seed).standard_normal((rows, DIMENSION), dtype=np.float32)
    values /= np.linalg.norm(values, axis=1, keepdims=True)
    return values


def of_workers() -> float:
    """Seconds of processors that the worker processes took, their start included."""
    times = os.times()
    return times.children_user + times.children_system


def bytes_of(kind: str) -> int:
    """What this process has passed to write calls (wchar), or had read from disks (read_bytes)."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(f"{kind}:")).split()[1])


def forget_files(folder: Path) -> None:
    """Lets the system drop what it holds of the embeddings, once they are on the disk."""
    for path in folder.rglob("*.npy"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def peak_of(process: str) -> int:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])


class Children:
    """Watches the peaks of the worker processes while they live."""

    def __init__(self) -> None:
        self._peaks: dict[str, int] = {}
        threading.Thread(target=self._watch, daemon=True).start()

    def largest(self) -> int:
        """The highest peak of any of them, in bytes."""
        return max(self._peaks.values(), default=0)

    def _watch(self) -> None:
        own = str(os.getpid())
        while True:
            for listed in Path(f"/proc/{own}/task").iterdir():
                try:
                    for child in (listed / "children").read_text().split():
                        self._peaks[child] = max(self._peaks.get(child, 0), peak_of(child))
                except (OSError, StopIteration):
                    continue
            time.sleep(0.05)


def alone(rows: list[dict]) -> list[dict]:
    return [row for row in rows if not row["paired"] and not row.get("reading")]


def is_shown(row: dict) -> bool:
    return row["n"] >= 10_000 or row["stage"] == "embed"


def report(rows: list[dict]) -> None:
    """Prints the tables of docs/benchmarks.md."""
    print("| records | stage | seconds | processor | peak MiB | bytes written a record |")
    print("|--:|---|--:|--:|--:|--:|")
    for row in filter(is_shown, alone(rows)):
        peak, each = row["peak_bytes"] / 2**20, row["written_bytes"] / row["n"]
        print(
            f"| {row['n']:,} | {row['stage']} | {row['seconds']:.2f} | "
            f"{row['processor_seconds']:.2f} | {peak:.0f} | {each:.0f} |"
        )
    print(
        "\n| stage | slope of all | slopes from size to size | a, seconds | b, seconds a million |"
    )
    print("|---|--:|---|--:|--:|")
    for stage in (*STAGES, "embed"):
        n, seconds = of_stage(rows, stage)
        if len(n) < 2:
            continue
        a, b = fitted(n, seconds)
        steps = [slope(n[i : i + 2], seconds[i : i + 2]) for i in range(len(n) - 1)]
        each = ", ".join(f"{step:.2f}" for step in steps)
        print(f"| {stage} | {slope(n, seconds):.2f} | {each} | {a:.2f} | {b * 1e6:.1f} |")
    report_cold(rows)
    report_pairs(rows)
    report_model(rows)


def report_cold(rows: list[dict]) -> None:
    """Reading embeddings from memory beside reading them from the disk: means of all runs."""
    own = [row for row in rows if row.get("reading")]
    if not own:
        return
    print("\n| records | stage | embeddings | clock | program | kernel | GB from the disk |")
    print("|--:|---|---|--:|--:|--:|--:|")
    for n, stage, reading in sorted({(r["n"], r["stage"], r["reading"]) for r in own}):
        runs = [r for r in own if (r["n"], r["stage"], r["reading"]) == (n, stage, reading)]
        names = ("seconds", "processor_seconds", "kernel_seconds", "disk_bytes")
        clock, processor, kernel, read = (float(np.mean([r[k] for r in runs])) for k in names)
        print(
            f"| {n:,} | {stage} | {reading} | {clock:.2f} | {processor - kernel:.2f} | "
            f"{kernel:.2f} | {read / 1e9:.2f} |"
        )


def report_pairs(rows: list[dict]) -> None:
    """What two workers take beside one: all processors together, and the driver's own."""
    paired = [row for row in rows if row["paired"]]
    if not paired:
        return
    print("\n| records | stage | one worker | two workers, both | of these the driver | peak MiB |")
    print("|--:|---|--:|--:|--:|--:|")
    for stage in SHARED:
        one, two = (of_pair(paired, stage, workers) for workers in (1, 2))
        if one is not None:
            both, peak = two["processor_seconds"] + two["worker_seconds"], two["worker_peak_bytes"]
            own = [one["processor_seconds"], both, two["processor_seconds"]]
            figures = " | ".join(f"{seconds:.2f} s" for seconds in own)
            print(f"| {one['n']:,} | {stage} | {figures} | {peak / 2**20:.0f} |")


def of_pair(rows: list[dict], stage: str, workers: int) -> dict | None:
    """The run of a stage with so many workers that took the least of all processors."""
    named = [row for row in rows if row["paired"] and row["stage"] == stage]
    own = [row for row in named if row["workers"] == workers]
    return min(own, key=lambda row: row["processor_seconds"] + row["worker_seconds"], default=None)


def report_model(rows: list[dict], n: float = 1e7) -> None:
    """What the model says of n records."""
    print(f"\n| stage, {n:,.0f} records | measured on 1 | 1 worker | 8 workers | 64 workers |")
    print("|---|--:|--:|--:|--:|")
    totals = np.zeros(3)
    start = max((start_of_worker(rows, stage) for stage in SHARED), default=0.0)
    for stage in (*STAGES, "embed"):
        sizes, seconds = of_stage(rows, stage)
        if len(sizes) < 2:
            continue
        a, b = fitted(sizes, seconds)
        whole = max(a, 0.0) + b * n
        times = [whole if stage in DRIVER else whole / w + (w > 1) * start for w in (1, 8, 64)]
        if stage != "embed":
            totals += times
        known = "".join(f"{each:,.0f} s" for each in seconds[sizes == n])
        print(f"| {stage} | {known} | " + " | ".join(f"{each:,.0f} s" for each in times) + " |")
    print("| all but embed | | " + " | ".join(f"{each:,.0f} s" for each in totals) + " |")
    print(f"\nStart of a worker: {start:.1f} s.")


def start_of_worker(rows: list[dict], stage: str) -> float:
    """Processor seconds that each of two workers takes beyond half of what one process takes."""
    one, two = (of_pair(rows, stage, workers) for workers in (1, 2))
    if one is None or two is None:
        return 0.0
    return (two["processor_seconds"] + two["worker_seconds"] - one["processor_seconds"]) / 2


def of_stage(rows: list[dict], stage: str) -> tuple[np.ndarray, np.ndarray]:
    own = [row for row in alone(rows) if row["stage"] == stage]
    if stage != "embed":
        embedded = {row["n"] for row in alone(rows) if row["stage"] == "votes"}
        own = [row for row in own if row["n"] in embedded]
    n = np.array([row["n"] for row in own], dtype=float)
    return n, np.array([row["processor_seconds"] for row in own])


def slope(n: np.ndarray, seconds: np.ndarray) -> float:
    return float(np.polyfit(np.log(n), np.log(seconds), 1)[0])


def fitted(n: np.ndarray, seconds: np.ndarray) -> tuple[float, float]:
    """A and b of a + b n, by least squares of relative errors."""
    design = np.stack([1 / seconds, n / seconds], axis=1)
    (a, b), *_ = np.linalg.lstsq(design, np.ones(len(n)), rcond=None)
    return float(a), float(b)


def plot(rows: list[dict], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4))
    for stage in (*STAGES, "embed"):
        n, seconds = of_stage(rows, stage)
        if len(n):
            left.loglog(n, seconds, "o-", label=stage)
    sizes = np.array(sorted({row["n"] for row in alone(rows) if row["stage"] == "votes"}))
    left.loglog(sizes, sizes / sizes[-1] * 30, "k:", label="slope 1")
    left.set_xlabel("records")
    left.set_ylabel("seconds of a processor")
    left.legend(fontsize=8)
    for stage in STAGES:
        own = [r for r in alone(rows) if r["stage"] == stage and r["n"] in sizes]
        right.semilogx([r["n"] for r in own], [r["peak_bytes"] / 2**20 for r in own], "o-")
    right.axhline(2048, color="k", linestyle=":", label="2 GiB")
    right.set_ylim(0)
    right.set_xlabel("records")
    right.set_ylabel("peak memory of a process, MiB")
    right.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
