"""Decides which declared dataset files can be used, and reports what is wrong with the others.

A file that is broken, a name that two files have, and a base that is not declared each cost only
the files they are in: all others are used. Files that read the same records need one account, and
the terms of its owner: what can be told of that from declarations alone stands here; copies of a
source under other paths are recognised by fingerprints of their texts
(`sensitive/fingerprints.py`).

Which files hold private text follows, too. What runs on public text, and shows what it finds
without noise, asks here before it opens a file. A private declaration that does not hold counts as
well: a misspelt field elsewhere makes its source no less private. Where even its source cannot be
told, nothing is known to be public.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from glob import glob
from pathlib import Path
from typing import Any

from dpsynth_assets.datasets.cohort_registry import cohorts_of
from dpsynth_assets.datasets.fields import DatasetFileError, Problem, suggest
from dpsynth_assets.datasets.files import (
    DatasetFile,
    dataset_folders,
    find_dataset_files,
    locate,
    missing_folders,
    parse_dataset_file,
    read_documents,
    render_environment,
    repeated_names,
)
from dpsynth_assets.datasets.private_spec import PrivateDatasetSpec
from dpsynth_assets.datasets.public_spec import PublicDataSpec


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Declarations that can be used, and the problems of files that cannot, by file.

    Attributes:
        usable: Declarations, in the order of their files.
        refused: File, or a folder that is not there -> what is wrong with it. Another declaration
            of the same file may be usable.
        names: Name of a private dataset that is refused -> its file, as far as it can be read.
    """

    usable: tuple[DatasetFile, ...]
    refused: Mapping[Path, tuple[Problem, ...]]
    names: Mapping[str, Path]

    @property
    def problems(self) -> list[Problem]:
        """All problems of all files, in the order of the files."""
        return [problem for found in self.refused.values() for problem in found]

    @property
    def cohorts(self) -> dict[str, tuple[PrivateDatasetSpec, Path]]:
        """The known cohorts by name, each with the file that declares it or its dataset."""
        return {
            cohort.name: (cohort, file.path)
            for file in self.usable
            if isinstance(file.spec, PrivateDatasetSpec)
            for cohort in cohorts_of(file.spec)
        }

    def require_usable(self, name: str) -> None:
        """Checks that a dataset of this name is not among the refused ones.

        Raises:
            DatasetFileError: It is; with the problems of its file.
        """
        if name in self.names:
            raise DatasetFileError(self.refused[self.names[name]])


def standing(folders: Sequence[Path]) -> Standing:
    """Reads every dataset file below `folders`; a broken one is set apart, never raised.

    Of two files with one name neither can be used: one of them would spend the other's account.
    Documents of other components are passed over. No record is read.
    """
    problems = missing_folders(folders)
    usable: list[DatasetFile] = []
    names: dict[str, Path] = {}
    for path in find_dataset_files(folders):
        files, found = parse_dataset_file(path, foreign_ok=True)
        usable += files
        problems += found
        if found:
            names |= dict.fromkeys(_names_in(path) - {file.spec.name for file in files}, path)
    repeated = repeated_names(usable)
    usable, lost = _without(usable, repeated)
    bases = {file.spec.name for file in usable if _is_base(file)}
    strangers = unknown_bases(usable, bases, refused=names)
    usable, without_base = _without(usable, strangers)
    names |= {file.spec.name: file.path for file in (*lost, *without_base) if not _is_base(file)}
    refused: dict[Path, tuple[Problem, ...]] = {}
    for problem in (*problems, *repeated, *strangers):
        place = Path(problem.file)
        refused[place] = (*refused.get(place, ()), problem)
    return Standing(usable=tuple(usable), refused=refused, names=names)


def unknown_bases(
    files: Sequence[DatasetFile], bases: Collection[str], *, refused: Mapping[str, Path]
) -> list[Problem]:
    """Reports private datasets on a public base that no file declares, or one with mistakes.

    Args:
        files: Files without mistakes of their own.
        bases: Names of the bases that can be used.
        refused: Names that stand in files with mistakes, and those files.
    """
    return [
        Problem(
            "public_data",
            "the name of a declared public base",
            repr(file.spec.public_data),
            _remedy(file.spec.public_data, bases, refused),
            file=str(file.path),
        )
        for file in files
        if isinstance(file.spec, PrivateDatasetSpec) and file.spec.public_data not in bases
    ]


def _remedy(name: str, bases: Collection[str], refused: Mapping[str, Path]) -> str:
    if name in refused:
        return f"{refused[name]} declares it but has mistakes: fix that file first."
    return suggest(name, sorted(bases))


def _without(
    files: Sequence[DatasetFile], problems: Sequence[Problem]
) -> tuple[list[DatasetFile], list[DatasetFile]]:
    """Splits off the declarations of the files that have one of the problems."""
    bad = {problem.file for problem in problems}
    kept = [file for file in files if str(file.path) not in bad]
    return kept, [file for file in files if str(file.path) in bad]


def _is_base(file: DatasetFile) -> bool:
    return isinstance(file.spec, PublicDataSpec)


def _names_in(path: Path) -> set[str]:
    """The names that the documents of a file give, also where the file has other mistakes."""
    documents = (each for each in read_documents(path)[0] if isinstance(each, Mapping))
    attributes = (document.get("attributes") for document in documents)
    names = (each.get("name") for each in attributes if isinstance(each, Mapping))
    return {name for name in names if isinstance(name, str)}


def declared_base(name: str) -> PublicDataSpec | None:
    """Finds the public base of this name below the folders of dataset files.

    Plans read it whenever the UI opens, so a file is parsed once for as long as it stays the same.

    Args:
        name: What `public_data` of a private dataset says.

    Returns:
        Its declaration; None where no file that can be read declares it.
    """
    for path in find_dataset_files(dataset_folders()):
        state = path.stat()
        for base in _bases(path, state.st_mtime_ns, state.st_size):
            if base.name == name:
                return base
    return None


@lru_cache(maxsize=1024)
def _bases(path: Path, _changed: int, _size: int) -> tuple[PublicDataSpec, ...]:
    """The public bases of one file, while its time of change and its size stay what they are."""
    files, _ = parse_dataset_file(path, foreign_ok=True)
    return tuple(file.spec for file in files if isinstance(file.spec, PublicDataSpec))


_TERMS = {
    "budget.epsilon": lambda spec: spec.budget.epsilon,
    "budget.delta": lambda spec: spec.budget.delta,
    "budget.accountant": lambda spec: spec.budget.accountant,
    "neighboring_relation": lambda spec: str(spec.neighboring_relation),
    "privacy_unit": lambda spec: spec.unit.describe(),
    "approvals": lambda spec: spec.approvals,
    "approvers": lambda spec: sorted(spec.approvers),
}
"""Fields that files over one account have in common: composition assumes it."""

_Declared = Mapping[tuple[Path, str], PrivateDatasetSpec]
"""File and name of each private dataset -> its declaration."""


def shared_record_problems(
    files: Sequence[DatasetFile], declared: Sequence[DatasetFile] = ()
) -> list[Problem]:
    """Checks files against each other and against all others that are declared. Reads no record.

    Args:
        files: Files whose problems are wanted.
        declared: Further files they are compared with; those in `files` may be among them.

    Returns:
        A problem for each file that reads another's source, or shares an account on other terms.
    """
    others = {
        (file.path.resolve(), file.spec.name): file.spec
        for file in (*declared, *files)
        if isinstance(file.spec, PrivateDatasetSpec)
    }
    return [
        replace(problem, file=str(file.path))
        for file in files
        if isinstance(file.spec, PrivateDatasetSpec)
        for problem in (*_of_account(file.spec, others), *_of_source(file.spec, others))
    ]


def _of_account(spec: PrivateDatasetSpec, others: _Declared) -> Iterator[Problem]:
    if spec.shares_records_with is None:
        return
    owners = {other.name: other for other in others.values() if other.name != spec.name}
    owner = owners.get(spec.account)
    field = "shares_records_with"
    if owner is None:
        expected, got = "the name of a declared private dataset", repr(spec.account)
        yield Problem(field, expected, got, suggest(spec.account, sorted(owners)))
    elif owner.account != owner.name or owner.cohorts is not None:
        what = "is partitioned into cohorts" if owner.cohorts else f"shares with {owner.account!r}"
        expected = "a dataset with one account of its own"
        remedy = "Name the dataset that owns the account; a partitioned dataset cannot be shared."
        yield Problem(field, expected, f"{owner.name!r}, which {what}", remedy)
    else:
        remedy = "Both datasets charge one account: write the same value in both files."
        for name, read in _TERMS.items():
            mine, theirs = read(spec), read(owner)
            if mine != theirs:
                yield Problem(name, f"{theirs}, as in {owner.name!r}", f"{mine}", remedy)


def _of_source(spec: PrivateDatasetSpec, others: _Declared) -> Iterator[Problem]:
    mine = source_places(spec.source.path)
    for (path, _), other in others.items():
        if other.name == spec.name or other.account == spec.account:
            continue
        if mine & source_places(other.source.path):
            yield Problem(
                "source.path",
                "records that no other account pays for",
                f"{spec.source.path}, which {other.name!r} ({path}) reads",
                f"Write shares_records_with: {other.account} so that both spend one budget, "
                "or name another source.",
            )
            return


def source_places(path: str) -> set[str]:
    """The files that a path names, by their real places; the path itself where there are none."""
    if "://" in path:
        return {path}
    given = Path(path)
    found = [each for each in given.parent.glob(given.name) if each.exists()]
    return {str(each.resolve()) for each in found} or {str(given.resolve())}


_PATHS = ("path", "canaries")
"""Fields of a private declaration that name files: source, dictionary of secrets, canaries."""
_PUBLIC_DATA = "dpsynth_assets.components.PublicData"


def private_files(paths: Iterable[Path | str]) -> Iterator[tuple[Path | str, str, str]]:
    """Files that may not be read as public text: each, what it is, and what to do about it.

    Reads every declaration in `defs` and in the folders of DPSYNTH_DATASETS; no record.
    """
    declared: list[tuple[str, str]] = []
    unreadable: list[Path] = []
    for file in find_dataset_files(dataset_folders()):
        documents, problems = read_documents(file)
        found = [_declared(document, file) for document in documents]
        if problems or None in found:
            unreadable.append(file)
        declared += [each for own in found for each in own or ()]
    for path in paths:
        owner = next((name for source, name in declared if _holds(source, path)), None)
        if unreadable:
            got = f"a private declaration that cannot be read, in {unreadable[0]}"
            yield path, got, "Fix that file first: its source may be the file named here."
        elif owner is not None:
            yield path, f"a file of the private dataset {owner!r}", "Name public text."


def _declared(document: Any, file: Path) -> list[tuple[str, str]] | None:
    """Files of one declaration; none of another component; None where they cannot be told."""
    if not _is_private(document):
        return []
    attributes = document.get("attributes")
    if not isinstance(attributes, Mapping):
        return None
    name = str(attributes.get("name", file.name))
    try:
        paths = [locate(render_environment(path), file) for path in _paths(attributes)]
    except DatasetFileError:  # A variable that is not set here.
        return None
    return [(path, name) for path in paths] or None


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
    place = Path(source)
    if path.resolve().is_relative_to(place.resolve()):
        return True
    parts: Iterable[Path] = [place] if place.is_file() else place.rglob("*")
    if not place.exists():
        parts = map(Path, glob(source, recursive=True))  # noqa: PTH207
    return path.exists() and any(part.is_file() and part.samefile(path) for part in parts)
