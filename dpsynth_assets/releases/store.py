"""Immutable values of DP releases, addressed by the reservation that paid for them.

A retry, a backfill or a re-materialisation loads the stored release; noise is never drawn twice
for one payment. A value stored by a run that died before its commit is found here and committed.
The store is a folder or, where many machines share it, a prefix of an object store.

An asset hands on a copy of what was released, in a file beside others. A person who can write that
file could put other rows into a corpus, which would carry the label of what was paid for. So what
follows from a release is made from the stored release, whose digest the ledger holds; and a
candidate is published only if it equals the stored release, and if everything that it was made
from is in the ledger and in the store as it was sealed.
"""

import hashlib
import io
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpsynth_assets.files.whole import (
    MARKER,
    Room,
    download_whole,
    file_digests,
    file_names,
    missing_room,
    written_whole,
)
from dpsynth_assets.paths import Folder, actor, begin, home
from dpsynth_assets.privacy.errors import LedgerIntegrityError
from dpsynth_assets.privacy.ledger import (
    ChargeGraph,
    Checkpoint,
    Ledger,
    LedgerEntry,
    Witness,
    sqlite_path,
)
from dpsynth_assets.privacy.ledger.schema import KEPT
from dpsynth_assets.releases.waiting import StoreUnavailableError, reachable

if TYPE_CHECKING:
    import polars as pl

__all__ = ["StoreUnavailableError", "StoredReleases"]


ROWS, FILES = "rows", "files"
"""What a commit tells the digest of, in the public part of the ledger."""

PROVENANCE = ("origin", "batch", "cluster", "topic", "n_tokens")
"""Columns of a row that say what it was written from; published beside it."""


class StoredReleases:
    """Content of releases: one folder per reservation, JSON facts and Parquet rows."""

    def __init__(self, base: Folder, unfinished: Folder | None = None) -> None:
        """Names the folder; it is made when the first release is stored.

        Args:
            base: Folder or prefix of all releases.
            unfinished: Folder where draws keep what is not released yet; None: the sensitive store.
        """
        self._base_folder = base
        self._unfinished = unfinished

    @property
    def base(self) -> Folder:
        """Folder or prefix of all releases."""
        return self._base_folder

    @property
    def unfinished(self) -> Folder:
        """Folder or prefix where draws keep what is not released yet."""
        return self._unfinished or home().sensitive

    @property
    def plain(self) -> Path | None:
        """Folder of plain checkpoints, where those that are kept are sealed with a key."""
        return None

    def folder(self, reservation_id: str) -> Any:
        """Folder of one release (a `Folder`); it exists only once the release is complete."""
        return self.base / reservation_id

    def has(self, reservation_id: str) -> bool:
        """Says whether the release was stored completely."""
        folder = self.folder(reservation_id)
        if isinstance(folder, Path):
            return folder.is_dir()
        with self._reachable("read"):
            return bool((folder / MARKER).exists())

    def check_room(self, room: Room, *, ledger: Path | None = None) -> None:
        """Refuses, before anything is charged, where a value could not be stored.

        Args:
            room: What the release takes at most.
            ledger: Folder of the ledger's file; None where a server keeps it.

        Raises:
            StoreUnavailableError: The store is full, read-only or out of reach, or another disk of
                the installation has too little room for what the release keeps on its way.
        """
        base = self.base
        found = missing_room(self._needs(room, ledger))
        if found is not None:  # Before the mark of a new store, which a full disk cannot take.
            raise StoreUnavailableError(
                f"{found} Nothing was charged: free space there and run again."
            )
        with self._reachable("written"):
            if isinstance(base, Path):
                base.mkdir(parents=True, exist_ok=True)
                read_only = os.statvfs(base).f_flag & os.ST_RDONLY or not os.access(base, os.W_OK)
            else:
                base.fs.pipe_file((base / ".probe").path, b"")
                read_only = False
        if read_only:
            raise StoreUnavailableError(
                f"The release store at {base} is read-only. Nothing was charged: make it writable, "
                "or name another place in DPSYNTH_HOME or DPSYNTH_STORE_URL, and run again."
            )

    def _needs(self, room: Room, ledger: Path | None) -> list[tuple[str, Path, int]]:
        """Bytes that each place of the installation takes at once.

        A checkpoint replaces the one before it, so two lie side by side, and the value's files are
        written beside them before they are copied. An object store gets its copy by way of a
        temporary folder. A corpus is kept as the candidate and, beside the published folder that
        it takes the place of, once more.
        """
        temporary = Path(tempfile.gettempdir())
        places: list[tuple[str, Folder | None, int]] = [
            ("releases", self.base if isinstance(self.base, Path) else temporary, room.release),
            ("unfinished draws", self.unfinished, room.release + 2 * room.kept),
            ("runs", Path(os.environ.get("DAGSTER_HOME") or home().dagster), 0),
            ("temporary files", temporary, 0),
            ("released corpora", home().released, room.corpus),
            ("candidates", home().values, room.corpus),
            ("published", home().published, room.corpus),
        ]
        needs = [(name, place, size) for name, place, size in places if isinstance(place, Path)]
        if self.plain is not None:
            needs.append(("plain files", self.plain, room.release + 2 * room.kept))
        return needs if ledger is None else [*needs, ("ledger", ledger, 0)]

    def save(
        self,
        reservation_id: str,
        facts: dict[str, Any],
        rows: "pl.DataFrame | None" = None,
        files: Path | None = None,
    ) -> tuple[str, str]:
        """Stores a release, whole or not at all; returns its SHA-256 digest and its address.

        Args:
            reservation_id: The charge that paid for it.
            facts: JSON values.
            rows: Rows of a corpus.
            files: Folder of released files, copied as it is.

        Raises:
            StoreUnavailableError: The store is full or out of reach; nothing is left there.
        """
        final = self.folder(reservation_id)
        with self._reachable("written"), written_whole(final) as temporary:
            (temporary / "facts.json").write_text(json.dumps(facts, sort_keys=True))
            if rows is not None:
                content = io.BytesIO()
                rows.write_parquet(content)
                # Writing to the file, Polars would raise an error of its own on a full disk.
                (temporary / "rows.parquet").write_bytes(content.getbuffer())
            if files is not None:
                shutil.copytree(files, temporary / "files", copy_function=shutil.copyfile)
        return self.digest(reservation_id), str(final)

    def load(self, reservation_id: str) -> "tuple[dict[str, Any], pl.DataFrame | None]":
        """Loads facts and rows of a stored release.

        Raises:
            StoreUnavailableError: It is not there, or the store is out of reach.
        """
        folder = self.folder(reservation_id)
        if not self.has(reservation_id):
            raise StoreUnavailableError(
                f"Expected the stored release {reservation_id} in {self.base}, got nothing. "
                "Restore the folder from a backup, or ask for a new release, which is charged."
            )
        with self._reachable("read"):
            facts = json.loads((folder / "facts.json").read_text())
            if "rows.parquet" not in file_names(folder):
                return facts, None
            with (folder / "rows.parquet").open("rb") as file:
                import polars as pl

                return facts, pl.read_parquet(file)

    def digest(self, reservation_id: str) -> str:
        """SHA-256 over the names and bytes of the release's files: the same in every store."""
        digest = hashlib.sha256()
        folder = self.folder(reservation_id)
        with self._reachable("read"):
            for name in file_names(folder):
                if name != MARKER:
                    digest.update(name.encode())
                    digest.update(hashlib.sha256((folder / name).read_bytes()).digest())
        return digest.hexdigest()

    def files(self, reservation_id: str) -> Path:
        """Local folder of a release's files; it does not exist for a release without any.

        From an object store they are copied once, each compared with the digest stored with it.
        """
        folder = self.folder(reservation_id)
        if isinstance(folder, Path):
            return folder / "files"
        with self._reachable("read"):
            return download_whole(folder, home().release_cache / reservation_id) / "files"

    @contextmanager
    def _reachable(self, done: str) -> Iterator[None]:
        """Turns what a disk or an object store may raise into one line; nothing here is private."""
        remote = not isinstance(self.base, Path)
        with reachable(f"The release store at {self.base}", done, remote=remote):
            if str(self.base) not in _opened or not remote:
                begin(self.base, lambda: any(True for _ in self.base.glob("*/facts.json")))
                _opened.add(str(self.base))
            yield


_opened: set[str] = set()
"""Stores of other machines whose format this process has read."""


def opened_ledger(url: str) -> Ledger:
    """Connects to a ledger with what this installation remembers of it.

    Raises:
        LedgerIntegrityError: The installation remembers nothing, and holds stored releases that
            were paid for by charges which this ledger does not have.
    """
    witness = Witness(home().witness)
    if witness.load() is None:
        _expect_known_releases(url)
    checkpoint = Checkpoint(home().root / "ledger", url)
    return Ledger(url, checkpoint=checkpoint, witness=witness, actor=actor)


def unknown_releases(entries: Iterable[LedgerEntry]) -> int:
    """How many stored releases name a charge that is not among these entries."""
    folder = home().releases
    if not folder.exists():
        return 0
    names = {each.name for each in folder.iterdir() if not each.name.startswith(".")}
    return len(names - {entry.reservation for entry in entries})


def _expect_known_releases(url: str) -> None:
    """Refuses a ledger that lost charges together with the witness; asked where there is none."""
    file, folder = sqlite_path(url), home().releases
    if not isinstance(folder, Path) or not folder.exists():
        return
    unknown = unknown_releases(Ledger(url).entries() if file is None or file.exists() else ())
    if unknown:
        raise LedgerIntegrityError(
            "Expected a ledger that holds the charges of all stored releases, got one without "
            f"those of {unknown}: it was deleted, replaced or rolled back. Nothing was charged. "
            "Restore it with `dpsynth ledger restore FILE`, or accept the loss with `dpsynth "
            "ledger accept`."
        )


def sealed_release(
    ledger: Ledger, store: StoredReleases, reservation: str, asset: str
) -> "tuple[dict[str, Any], pl.DataFrame | None]":
    """Loads a release that the ledger has sealed.

    Args:
        ledger: Where it was charged and committed.
        store: Where it lies.
        reservation: Its charge, as an upstream value names it.
        asset: Asset it has to be a release of, parts joined by `/`.

    Returns:
        Its facts and rows.

    Raises:
        LedgerIntegrityError: The ledger has sealed no such release, or the store holds another.
        StoreUnavailableError: It is not in the store.
    """
    charge, digest = ledger.charge(reservation), ledger.sealed_digest(reservation)
    if charge is None or digest is None or charge.asset != asset:
        committed = "" if digest else ", not committed"
        got = "none" if charge is None else f"one of {charge.asset}{committed}"
        raise LedgerIntegrityError(
            f"Expected a value of {asset} that names its release in the ledger, got {got}. "
            f"Materialise {asset} again, which is free where it was released before."
        )
    facts, rows = store.load(reservation)
    refuse_altered(store, reservation, asset, digest)
    return facts, rows


def last_charge(ledger: Ledger, asset: str, account: str) -> LedgerEntry | None:
    """The charge of the release of an asset that was committed last; None where none was."""
    found = [
        each
        for each in ledger.provenance().charges.values()
        if each.asset == asset and each.cohort == account and ledger.sealed_digest(each.reservation)
    ]
    return max(found, key=lambda each: each.seq, default=None)


def refuse_altered(store: StoredReleases, reservation: str, asset: str, digest: str) -> None:
    """Refuses a stored release that is not the one the ledger has sealed.

    Raises:
        LedgerIntegrityError: Its digest is another one.
    """
    if store.digest(reservation) != digest:
        raise LedgerIntegrityError(
            f"Expected the stored release {reservation} of {asset} as the ledger recorded it, got "
            "none or altered files. Restore its folder from a backup, or ask for a new release, "
            "which is charged."
        )


def candidate_problem(
    candidate: "pl.DataFrame", asset: str, account: str, ledger: Ledger, store: StoredReleases
) -> str | None:
    """Says why a candidate is not what was paid for; None where it is.

    Args:
        candidate: Rows, with the column `reservation` that names their release.
        asset: Asset of the candidate, parts joined by `/`.
        account: Cohort that the ledger charges for it.
        ledger: Where it was charged.
        store: Where releases lie.

    **Privacy** Compares released rows with released rows: post-processing.
    """
    named = candidate["reservation"].unique().to_list() if "reservation" in candidate else []
    if len(named) != 1:
        return f"Expected rows of one release of {asset}, got rows of {len(named)}."
    reservation = str(named[0])
    try:
        _, rows = sealed_release(ledger, store, reservation, asset)
    except (LedgerIntegrityError, StoreUnavailableError) as problem:
        return str(problem)
    if rows is None or not rows.equals(candidate.drop("reservation")):
        return (
            f"Expected the rows of {asset} that the ledger sealed, got other rows. Materialise "
            f"{asset} again, which is free."
        )
    graph = ledger.provenance()
    if (cohort := graph.charges[reservation].cohort) != account:
        return f"Expected a release charged to {account!r}, got {cohort!r}."
    return problem_behind(reservation, graph, ledger, store)


def problem_behind(
    reservation: str, graph: ChargeGraph, ledger: Ledger, store: StoredReleases
) -> str | None:
    """Says what is missing or altered of what a release was made from; None where nothing is."""
    for name in graph.behind(reservation):
        charge, digest = graph.charges.get(name), ledger.sealed_digest(name)
        if charge is None or digest is None:
            return (
                f"Expected the release {name}, which the rows were made from, in the ledger, got "
                "none: it was charged to another ledger, or this one was replaced."
            )
        try:
            refuse_altered(store, name, charge.asset, digest)
        except LedgerIntegrityError as problem:
            return str(problem)
    return None


def told_content(
    facts: Mapping[str, Any], rows: "pl.DataFrame | None", files: Path | None
) -> dict[str, Any]:
    """What a commit records: SHA-256 of the rows, or of the files; which rows were kept.

    **Privacy** A function of what the charge paid for, and no more private than that.
    """
    told: dict[str, Any] = {} if rows is None else {ROWS: rows_digest(rows)}
    if kept := _acceptance_facts(facts):
        told[KEPT] = kept
    if files is not None and files.is_dir():
        told[FILES] = files_digest(file_digests(files))
    return told


def _acceptance_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Those facts of a corpus that say which written rows were kept; none where all were."""
    own = ("rules", "rules_fit", "candidates", "acceptance_rate", "turned_down", "rounds")
    ours = {*own, "places_left_empty", "judge", "judge_model"}
    chosen = {k: v for k, v in facts.items() if k in ours or k.startswith("threshold_")}
    return chosen if "acceptance_rate" in facts else {}


def rows_digest(candidate: "pl.DataFrame") -> str:
    """SHA-256 of what is published of a candidate, row by row; names of label columns are not."""
    kept = [name for name in ("text", "label", *PROVENANCE) if name in candidate.columns]
    digest = hashlib.sha256(json.dumps(kept).encode())
    for row in candidate.select(kept).iter_rows():
        digest.update(json.dumps(row, ensure_ascii=False).encode() + b"\n")
    return digest.hexdigest()


def files_digest(digests: Mapping[str, str]) -> str:
    """SHA-256 of released files from that of each, by its name."""
    return hashlib.sha256(json.dumps(dict(digests), sort_keys=True).encode()).hexdigest()
