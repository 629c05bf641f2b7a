"""Times the nearest-candidate votes of private evolution beside faiss and Microsoft's `pe`.

    PYTHONPATH=. python benchmarks/evolution_votes.py [--records 20000] [--candidates 2000]
        [--dimension 384] [--labels 1] [--rounds 3] [--threads 1] [--pe CHECKOUT]
    PYTHONPATH=. python benchmarks/evolution_votes.py --yelp [--folder FOLDER] [--threads 2]

Side by side, interleaved so that a busy machine slows all alike: ours; faiss `IndexFlatL2`; and
what `pe` falls back to where faiss is not installed, scikit-learn's brute-force search, in a
process of its own. Ours twice: votes of records as they come, and of records that lie label by
label, as private evolution keeps them for its rounds. With --pe the function is read from a
checkout of github.com/microsoft/DPSDA, which is not on PyPI; without, the same call is made. With
--labels every contender searches label by label. Embeddings are random unit vectors: the work is
the same for every content.

--yelp is the size of SecPE's Table 2: 1.94 million private embeddings mapped from a file, labels in
no order, 50 labels of 700 candidates. Prints seconds and peak memory of a process that does nothing
else, and compares a sample with a search in float64.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import util
from pathlib import Path

import numpy as np

BACKEND = "pe/histogram/nearest_neighbor_backend/sklearn.py"
YELP_RECORDS, YELP_LABELS, YELP_CANDIDATES = 1_940_000, 50, 700
CHUNK = 20_000
SAMPLE = 500

Search = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""(records, candidates) of one label -> nearest candidate of each record."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int)
    parser.add_argument("--candidates", type=int, help="of all labels together")
    parser.add_argument("--dimension", type=int, default=384)
    parser.add_argument("--labels", type=int)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--pe", type=Path, help="checkout of github.com/microsoft/DPSDA")
    parser.add_argument("--yelp", action="store_true")
    parser.add_argument("--folder", type=Path, help="where generated embeddings lie; kept")
    parser.add_argument("--peer", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--vote", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    sizes = (YELP_RECORDS, YELP_LABELS * YELP_CANDIDATES, YELP_LABELS)
    defaults = sizes if options.yelp else (20_000, 2_000, 1)
    for name, default in zip(("records", "candidates", "labels"), defaults, strict=True):
        if getattr(options, name) is None:
            setattr(options, name, default)
    return options


def main() -> None:
    options = arguments()
    if options.peer is not None:
        peer(options)
    elif options.vote is not None:
        vote(options.vote)
    else:
        os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = str(options.threads)
        with tempfile.TemporaryDirectory() as temporary:
            folder = options.folder or Path(temporary)
            folder.mkdir(parents=True, exist_ok=True)
            generate(folder, options)
            (yelp if options.yelp else side_by_side)(folder, options)


def generate(folder: Path, options: argparse.Namespace) -> None:
    """Writes random unit vectors and labels, unless they are there."""
    wanted = {name: getattr(options, name) for name in ("records", "candidates", "labels")}
    wanted["dimension"] = options.dimension
    done = folder / "sizes.json"
    if done.exists() and json.loads(done.read_text()) == wanted:
        return
    for name, seed in (("records", 0), ("candidates", 1)):
        rng, count = np.random.default_rng(seed), wanted[name]
        rows = np.lib.format.open_memmap(
            folder / f"{name}.npy", "w+", np.float32, (count, options.dimension)
        )
        for start in range(0, count, CHUNK):
            part = rng.standard_normal(
                (min(CHUNK, count - start), options.dimension), dtype=np.float32
            )
            rows[start : start + len(part)] = part / np.linalg.norm(part, axis=1, keepdims=True)
        rows.flush()
        np.save(folder / f"{name}_labels.npy", rng.integers(0, options.labels, count))
    done.write_text(json.dumps(wanted))


def loaded(folder: Path, mapped: str | None = None) -> tuple[np.ndarray, ...]:
    """Records and their labels, candidates and theirs."""
    return (
        np.load(folder / "records.npy", mmap_mode=mapped),  # type: ignore[call-overload]
        np.load(folder / "records_labels.npy"),
        np.load(folder / "candidates.npy"),
        np.load(folder / "candidates_labels.npy"),
    )


def by_label(search: Search, parts: tuple[np.ndarray, ...]) -> np.ndarray:
    """Searches every label on its own."""
    records, own, candidates, theirs = parts
    found = np.full(len(records), -1)
    for label in np.unique(theirs):
        rows, places = np.flatnonzero(own == label), np.flatnonzero(theirs == label)
        if len(rows):
            found[rows] = places[search(records[rows], candidates[places])]
    return found


def faiss_search(records: np.ndarray, candidates: np.ndarray) -> np.ndarray:
    import faiss

    index = faiss.IndexFlatL2(candidates.shape[1])
    index.add(candidates)
    return index.search(records, 1)[1][:, 0]


def pe_search(checkout: Path | None) -> Search:
    """The backend of `pe` without faiss: from its own file, or the call that the file makes."""
    if checkout is not None:
        spec = util.spec_from_file_location("pe_sklearn_backend", checkout / BACKEND)
        if spec is None or spec.loader is None or not (checkout / BACKEND).is_file():
            raise SystemExit(f"expected {BACKEND} in {checkout}; give a checkout of DPSDA")
        module = util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return lambda records, candidates: module.search(candidates, records, 1, "l2")[1][:, 0]

    def search(records: np.ndarray, candidates: np.ndarray) -> np.ndarray:
        from sklearn.neighbors import NearestNeighbors

        neighbors = NearestNeighbors(n_neighbors=1, metric="l2", algorithm="brute", n_jobs=-1)
        return neighbors.fit(candidates).kneighbors(records)[1][:, 0]

    return search


def timed(run: Callable[[], np.ndarray]) -> tuple[float, float, np.ndarray]:
    """Processor seconds, seconds and result."""
    cpu, wall = time.process_time(), time.perf_counter()
    found = run()
    return time.process_time() - cpu, time.perf_counter() - wall, found


def peer(options: argparse.Namespace) -> None:
    """Runs `pe`'s search in this process and prints how long it took."""
    parts = loaded(options.peer)
    search = pe_search(options.pe)
    by_label(search, tuple(part[:200] for part in parts))  # imports
    cpu, wall, found = timed(lambda: by_label(search, parts))
    np.save(options.peer / "peer.npy", found)
    print(json.dumps([cpu, wall]))


def side_by_side(folder: Path, options: argparse.Namespace) -> None:
    """Prints the least processor time of every contender, and where they disagree."""
    import faiss
    from threadpoolctl import threadpool_limits

    from dpsynth_assets.methods.evolution.votes import VotingRecords, nearest_candidates

    threadpool_limits(options.threads)  # numpy is loaded already: the environment is too late
    faiss.omp_set_num_threads(options.threads)
    parts = loaded(folder)
    command = [sys.executable, __file__, "--peer", str(folder)]
    command += ["--pe", str(options.pe)] if options.pe else []
    times: dict[str, list[tuple[float, float]]] = {}
    found: dict[str, np.ndarray] = {}
    kept = VotingRecords.in_label_order(*parts[:2])
    in_order = (kept.vectors, kept.labels, *parts[2:])
    order = np.argsort(parts[1], kind="stable")
    nearest_candidates(*(part[:200] for part in parts))
    for _ in range(options.rounds):
        for name, run in (
            ("ours", lambda: nearest_candidates(*parts)),
            ("ours, in order", lambda: nearest_candidates(*in_order, norms=kept.norms)),
            ("faiss IndexFlatL2", lambda: by_label(faiss_search, parts)),
        ):
            cpu, wall, found[name] = timed(run)
            times.setdefault(name, []).append((cpu, wall))
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        times.setdefault("pe without faiss", []).append(tuple(json.loads(said.splitlines()[-1])))
        found["pe without faiss"] = np.load(folder / "peer.npy")
    print(
        f"{options.records} records x {options.candidates} candidates x {options.dimension}, "
        f"{options.labels} labels, {options.threads} threads, best of {options.rounds}"
    )
    found["ours, in order"] = found["ours, in order"][np.argsort(order)]
    ours = min(cpu for cpu, _ in times["ours, in order"])
    for name, runs in times.items():
        cpu, wall = min(runs)
        other = int((found[name] != found["ours"]).sum())
        print(
            f"{name:20s} {cpu:8.3f} processor s {wall:8.3f} s  {cpu / ours:6.1f} x  "
            f"{other} of {options.records} votes differ from ours"
        )


def yelp(folder: Path, options: argparse.Namespace) -> None:
    """Votes in a process of its own and checks a sample."""
    said = subprocess.run(
        [sys.executable, __file__, "--vote", str(folder)],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    facts = json.loads(said.splitlines()[-1])
    print(
        f"{options.records} mapped records, {options.labels} labels, {options.candidates} "
        f"candidates, {options.threads} threads: {facts['seconds']:.1f} s, "
        f"{facts['processor_seconds']:.1f} processor s, peak memory {facts['peak_gib']:.2f} GiB "
        f"({facts['before_gib']:.2f} GiB before the votes)"
    )
    records, own, candidates, theirs = loaded(folder, "r")
    rows = np.random.default_rng(2).choice(len(records), SAMPLE, replace=False)
    found, wrong = np.load(folder / "votes.npy"), 0
    for row in rows.tolist():
        places = np.flatnonzero(theirs == own[row])
        apart = candidates[places].astype(np.float64) - records[row].astype(np.float64)
        wrong += int(places[np.square(apart).sum(axis=1).argmin()] != found[row])
    print(f"{wrong} of {SAMPLE} sampled votes differ from a search in float64")


def vote(folder: Path) -> None:
    """Votes on mapped records; prints time and memory."""
    from dpsynth_assets.methods.evolution.votes import nearest_candidates

    parts = loaded(folder, "r")
    before = peak_gib()
    cpu, wall, found = timed(lambda: nearest_candidates(*parts))
    np.save(folder / "votes.npy", found)
    print(
        json.dumps(
            {
                "seconds": wall,
                "processor_seconds": cpu,
                "peak_gib": peak_gib(),
                "before_gib": before,
            }
        )
    )


def peak_gib() -> float:
    """Peak resident memory of this process; `ru_maxrss` would include its parent's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 2**20


if __name__ == "__main__":
    main()
