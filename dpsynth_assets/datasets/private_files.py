"""Which files hold private text, by the declarations of this installation.

What runs on public text, and shows what it finds without noise, asks here before it opens a file. A
private declaration that does not hold counts as well: a misspelt field elsewhere makes its source
no less private. Where even its source cannot be told, nothing is known to be public.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from glob import glob
from pathlib import Path
from typing import Any

from dpsynth_assets.datasets.files import (
    SecretVariableError,
    dataset_folders,
    find_dataset_files,
    locate,
    render_environment,
)
from dpsynth_assets.datasets.yaml_documents import read_documents

_PATHS = ("path", "canaries")
"""Fields of a private declaration that name files: source, dictionary of secrets, canaries."""
_PUBLIC_DATA = "dpsynth_assets.components.PublicData"


@dataclass(frozen=True, kw_only=True)
class PrivateFiles:
    """Files of private declarations.

    Attributes:
        declared: Path, pattern or folder, and the name of the dataset that declares it.
        unreadable: Dataset files with a private declaration whose source cannot be told.
    """

    declared: tuple[tuple[str, str], ...]
    unreadable: tuple[Path, ...]

    @classmethod
    def of_installation(cls) -> "PrivateFiles":
        """Reads every declaration in `defs` and in the folders of DPSYNTH_DATASETS; no record."""
        declared: list[tuple[str, str]] = []
        unreadable: list[Path] = []
        for file in find_dataset_files([each for each in dataset_folders() if each.is_dir()]):
            documents, problems = read_documents(file)
            if problems:
                unreadable.append(file)
            for document in documents:
                found = _declared(document, file)
                if found is None:
                    unreadable.append(file)
                else:
                    declared += found
        return cls(declared=tuple(declared), unreadable=tuple(dict.fromkeys(unreadable)))

    def owner_of(self, path: Path | str) -> str | None:
        """Name of a private dataset that reads this file, folder, link or address, if any does."""
        return next((owner for source, owner in self.declared if _holds(source, path)), None)

    def problem(self, path: Path | str) -> tuple[str, str] | None:
        """Says why a file may not be read as public text: what it is, and what to do about it."""
        if self.unreadable:
            return (
                f"a private declaration that cannot be read, in {self.unreadable[0]}",
                "Fix that file first: its source may be the file named here.",
            )
        if (owner := self.owner_of(path)) is not None:
            return f"a file of the private dataset {owner!r}", "Name public text."
        return None


def _declared(document: Any, file: Path) -> list[tuple[str, str]] | None:
    """Files of one declaration; none of another component; None where they cannot be told."""
    if not _is_private(document):
        return []
    attributes = document.get("attributes")
    if not isinstance(attributes, Mapping):
        return None
    name = str(attributes.get("name", file.name))
    try:
        paths = [render_environment(path) for path in _paths(attributes)]
    except (KeyError, SecretVariableError):
        return None
    if not paths:
        return None
    return [(locate(path, file), name) for path in paths]


def _is_private(document: Any) -> bool:
    """Whether a document declares private records, perhaps with mistakes."""
    if not isinstance(document, Mapping):
        return False
    kind = str(document.get("type", ""))
    ours = kind.partition(".")[0] == __name__.partition(".")[0]
    if ours:
        return not (kind == _PUBLIC_DATA or kind.endswith(".Benchmark"))
    return {"budget", "methods"} <= set(document.get("attributes") or ())


def _paths(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, part in value.items():
            if key in _PATHS and isinstance(part, str):
                yield part
            else:
                yield from _paths(part)
    elif isinstance(value, list):
        for part in value:
            yield from _paths(part)


def _holds(source: str, path: Path | str) -> bool:
    """Whether a file is a private source, one of its files, or a link to one; addresses: equal."""
    if "://" in source or isinstance(path, str):
        return source == path
    own = path.resolve()
    if own == Path(source).resolve() or own.is_relative_to(Path(source).resolve()):
        return True
    parts = [Path(source)] if Path(source).is_file() else map(Path, glob(source, recursive=True))  # noqa: PTH207
    return path.exists() and any(part.is_file() and part.samefile(path) for part in parts)
