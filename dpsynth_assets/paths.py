"""Places on disk: one root, four stores beside Dagster's own home.

`DPSYNTH_HOME` (default `.dpsynth` in the working directory) holds `dagster/` (DAGSTER_HOME),
`ledger/`, `sensitive/` (owner-only), `artifacts/` (public models and internal intermediates), and
`released/` and `exports/` (the only folders meant to leave the machine). `DPSYNTH_STORE_URL` moves
stored releases and public values to an object store, `DPSYNTH_PUBLISH_URL` receives a copy of every
published corpus; what is private or internal stays under `DPSYNTH_HOME` in any case.
`DPSYNTH_SENSITIVE_URL` alone moves the sensitive store, encrypted, to a prefix of its own.
"""

import os
import posixpath
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from upath import UPath

from dpsynth_assets.privacy.errors import FORMAT, PrivacyError, require_format
from dpsynth_assets.privacy.ledger.actors import Actor, account, read_key
from dpsynth_assets.privacy.ledger.replacing import owner_folder, replaced

SENSITIVE_VARIABLE = "DPSYNTH_SENSITIVE_URL"
"""Environment variable: where the sensitive store is in an object store."""

KEY_VARIABLE = "DPSYNTH_SIGNING_KEY"
"""Environment variable: file of the key that signs entries of the ledger."""

MARK = ".format"
"""File of a home or store that says its format."""

_HELD = ("sensitive", "artifacts", "released")
"""Folders of a home that is not new."""

_CONDITIONAL = ("s3", "gs")
"""Object stores that write only where nothing is, in one step; of others that is not known."""

Folder = Path | UPath
"""A folder on a disk, or a prefix of an object store."""


class _Below:
    """A place of its own in the home."""

    def __init__(self, *names: str) -> None:
        self._names = names

    def __get__(self, home: "Home", _: type) -> Path:
        return home.root.joinpath(*self._names)


@dataclass(frozen=True)
class Home:
    """The stores of one installation."""

    root: Path

    @property
    def ledger_url(self) -> str:
        """SQLAlchemy URL of the ledger: DPSYNTH_LEDGER_URL, or SQLite beside DAGSTER_HOME."""
        default = f"sqlite:///{self.root / 'ledger' / 'ledger.sqlite'}"
        return os.environ.get("DPSYNTH_LEDGER_URL", default)

    witness = _Below("witness")
    """Record that this installation keeps of its ledger, apart from the ledger's own folder."""

    @property
    def sensitive(self) -> Folder:
        """Owner-only store of private intermediates: `sensitive`, or DPSYNTH_SENSITIVE_URL.

        Raises:
            PrivacyError: The variable names no prefix of its own in an object store.
        """
        address = os.environ.get(SENSITIVE_VARIABLE, "").strip()
        return _located_apart(address) if address else self.local_sensitive

    local_sensitive = _Below("sensitive")
    """Sensitive store of this machine, whether or not another place is named."""
    artifacts = _Below("artifacts")
    """Public models and DP releases that feed later stages."""

    @property
    def values(self) -> Folder:
        """Values of public and released assets: `artifacts`, or DPSYNTH_STORE_URL/values."""
        return self._stored("values", self.artifacts)

    @property
    def releases(self) -> Folder:
        """Stored releases: `artifacts/releases`, or DPSYNTH_STORE_URL/releases."""
        return self._stored("releases", self.artifacts / "releases")

    public_models = _Below("artifacts", "public")
    """Trained public models of this machine: base/kind/version."""

    @property
    def shared_models(self) -> Folder | None:
        """Place where machines share trained public models: DPSYNTH_STORE_URL/public, if set."""
        address = os.environ.get("DPSYNTH_STORE_URL", "")
        return located(address) / "public" if address else None

    release_cache = _Below("release_cache")
    """Local copies of released files that are in an object store."""

    @property
    def published(self) -> Folder | None:
        """Place for a copy of every published corpus, if DPSYNTH_PUBLISH_URL names a place."""
        address = os.environ.get("DPSYNTH_PUBLISH_URL", "")
        return located(address) if address else None

    def _stored(self, name: str, local: Path) -> Folder:
        address = os.environ.get("DPSYNTH_STORE_URL", "")
        return located(address) / name if address else local

    released = _Below("released")
    """Corpora, cards and statements that may leave."""
    exports = _Below("exports")
    """Packages of `dpsynth export`, which may leave."""
    reports = _Below("reports")
    """Internal evaluation reports: scored against private held-out text."""
    plans = _Below("plans")
    """Factors of fixed plans, computed once from public facts."""
    benchmarks = _Below("benchmarks")
    """Corpora and scores of benchmarks over public records, by benchmark."""
    audits = _Below("audits.json")
    """Results of the mechanism audits run on this installation."""
    dagster = _Below("dagster")
    """Dagster's own storage."""


def located(address: str) -> Folder:
    """A local folder, or a prefix of an object store: `s3://bucket/prefix`, `gs://bucket/prefix`.

    Listings are not cached: another process may have written since.
    """
    if "://" not in address:
        return Path(address)
    if address.startswith("file://"):
        return Path(address.removeprefix("file://"))
    return UPath(address, use_listings_cache=False)


def absolute(place: Folder) -> Folder:
    """The place as any process finds it; a prefix of an object store is the same everywhere."""
    return place.resolve() if isinstance(place, Path) else place


def _located_apart(address: str) -> Folder:
    """The prefix of the sensitive store, which shares none with what may be read by others."""
    parts = urlsplit(address)
    unusual = "@" in parts.netloc or parts.query or parts.fragment
    if parts.scheme not in _CONDITIONAL or not parts.netloc or unusual:
        raise PrivacyError(
            f"{SENSITIVE_VARIABLE}: expected s3://bucket/prefix or gs://bucket/prefix without "
            "credentials, got another address (not shown). For another folder, set DPSYNTH_HOME."
        )
    for name in ("DPSYNTH_STORE_URL", "DPSYNTH_PUBLISH_URL"):
        other = os.environ.get(name, "")
        if "://" in other and _overlap(address, other):
            raise PrivacyError(
                f"{SENSITIVE_VARIABLE}: expected a prefix apart from {name}, got one that is the "
                "same, inside it or around it. Name another prefix, best in another bucket."
            )
    return located(address.rstrip("/"))


def _overlap(first: str, second: str) -> bool:
    """Says whether one of two prefixes of object stores is in the other."""
    keys = [_key(urlsplit(address)) for address in (first, second)]
    return keys[0].startswith(keys[1]) or keys[1].startswith(keys[0])


def _key(parts: SplitResult) -> str:
    return posixpath.normpath(f"{parts.netloc.rpartition('@')[2]}/{parts.path}") + "/"


def project_root() -> Path:
    """Folder of the clone; the working directory where the package was installed without one."""
    clone = Path(__file__).resolve().parents[1]
    return clone if (clone / "workspace.yaml").exists() else Path.cwd()


def home_root() -> Path:
    """Resolves DPSYNTH_HOME without opening it: nothing may be there."""
    return Path(os.environ.get("DPSYNTH_HOME", project_root() / ".dpsynth")).resolve()


def signing_key() -> Path:
    """File of the key that signs: DPSYNTH_SIGNING_KEY, or `signing_key.pem` in DPSYNTH_HOME."""
    named = os.environ.get(KEY_VARIABLE, "").strip()
    return Path(named) if named else home_root() / "signing_key.pem"


def actor() -> Actor:
    """Who acts in this process: the key that signs, or an account where no key was made.

    Raises:
        PrivacyError: The key that is there, or named, cannot be used.
    """
    file = signing_key()
    is_named = bool(os.environ.get(KEY_VARIABLE, "").strip())
    return read_key(file) if is_named or file.exists() else account()


def home() -> Home:
    """Opens DPSYNTH_HOME; a new one is begun for its owner alone, under any umask.

    Raises:
        FormatError: It is of another format; nothing was written to it.
        PrivacyError: It cannot be read, or there is none and none can be made.
    """
    root = home_root()
    try:
        begin(owner_folder(root), lambda: any((root / name).exists() for name in _HELD))
    except OSError as error:
        raise PrivacyError(
            f"Expected a home that can be read and written to, got {root} ({error.strerror}). Set "
            "DPSYNTH_HOME to a folder of your own."
        ) from None
    return Home(root)


def begin(place: Folder, holds_any: Callable[[], bool]) -> None:
    """Refuses a home or store of another format; gives a new one the mark of ours.

    Args:
        place: The home or store.
        holds_any: Says whether anything of a home or store is there; asked where no mark lies,
            which is written first when a place is begun.

    Raises:
        FormatError: It has another mark, or none and is not new.
    """
    mark = place / MARK
    if not mark.exists() and not holds_any():
        _write(mark)
    found = mark.read_bytes()[:16].decode(errors="replace").strip() if mark.exists() else None
    require_format(place, "an empty format file" if found == "" else found)


def _write(mark: Folder) -> None:
    content = f"{FORMAT}\n"
    if not isinstance(mark, Path):
        mark.write_text(content)
        return
    mark.parent.mkdir(parents=True, exist_ok=True)
    with replaced(mark, only_if_absent=True) as new:
        new.write_text(content)
        new.chmod(mark.parent.stat().st_mode & 0o666)  # Who may read the folder may read its mark.
