"""Which of the declared dataset files can be used, and what is wrong with the others.

A file that is broken, a name that two files have, and a base that nobody declares each cost only
the files they are in: all others are used. Files that read the same records need one account, and
the terms of its owner: what can be told of that from declarations alone stands here; copies of a
source under other paths are told by fingerprints of their texts (`sensitive/fingerprints.py`).
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from dpsynth_assets.datasets.cohort_registry import cohorts_of
from dpsynth_assets.datasets.files import (
    DatasetFile,
    dataset_folders,
    find_dataset_files,
    missing_folders,
    parse_dataset_file,
    repeated_names,
)
from dpsynth_assets.datasets.private_spec import PrivateDatasetSpec
from dpsynth_assets.datasets.problems import DatasetFileError, Problem, suggest
from dpsynth_assets.datasets.public_spec import PublicDataSpec
from dpsynth_assets.datasets.yaml_documents import read_documents


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
    for path in find_dataset_files([folder for folder in folders if folder.is_dir()]):
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
    """The names that the documents of a file give, whatever else is wrong with them."""
    documents, _ = read_documents(path)
    return {name for document in documents if isinstance(name := _name_in(document), str)}


def _name_in(document: Any) -> Any:
    attributes = document.get("attributes") if isinstance(document, Mapping) else None
    return attributes.get("name") if isinstance(attributes, Mapping) else None


def declared_base(name: str) -> PublicDataSpec | None:
    """Finds the public base of this name below the folders of dataset files.

    Plans read it whenever the UI opens, so a file is parsed once for as long as it stays the same.

    Args:
        name: What `public_data` of a private dataset says.

    Returns:
        Its declaration; None where no file that can be read declares it.
    """
    folders = [folder for folder in dataset_folders() if folder.is_dir()]
    for path in find_dataset_files(folders):
        state = path.stat()
        for base in _bases(path, state.st_mtime_ns, state.st_size):
            if base.name == name:
                return base
    return None


@lru_cache(maxsize=1024)
def _bases(path: Path, changed: int, size: int) -> tuple[PublicDataSpec, ...]:
    """The public bases of one file, while its time of change and its size stay what they are."""
    del changed, size
    files, _ = parse_dataset_file(path, foreign_ok=True)
    return tuple(file.spec for file in files if isinstance(file.spec, PublicDataSpec))


_TERMS = {
    "budget.epsilon": lambda spec: spec.budget.epsilon,
    "budget.delta": lambda spec: spec.budget.delta,
    "budget.accountant": lambda spec: spec.budget.accountant,
    "neighboring_relation": lambda spec: str(spec.neighboring_relation),
    "privacy_unit": lambda spec: spec.unit.describe(),
}
"""Fields that files over one account have in common: composition assumes it."""


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
    known = {(file.path.resolve(), file.spec.name): file for file in (*declared, *files)}
    others = [file for file in known.values() if isinstance(file.spec, PrivateDatasetSpec)]
    problems: list[Problem] = []
    for file in files:
        if not isinstance(file.spec, PrivateDatasetSpec):
            continue
        if file.spec.shares_records_with is not None:
            problems += _of_account(file, file.spec, others)
        problems += _of_source(file, file.spec, others)
    return problems


def _of_account(
    file: DatasetFile, spec: PrivateDatasetSpec, others: Sequence[DatasetFile]
) -> Iterator[Problem]:
    owners = {other.spec.name: other.spec for other in others if other.spec.name != spec.name}
    owner = owners.get(spec.account)
    field = "shares_records_with"
    if not isinstance(owner, PrivateDatasetSpec):
        expected, got = "the name of a declared private dataset", repr(spec.account)
        yield _problem(file, field, expected, got, suggest(spec.account, sorted(owners)))
        return
    if owner.account != owner.name or owner.cohorts is not None:
        what = (
            "is partitioned into cohorts" if owner.cohorts else f"shares those of {owner.account!r}"
        )
        remedy = "Name the dataset that owns the account; one that is partitioned cannot be shared."
        yield _problem(
            file, field, "a dataset with one account of its own", f"{owner.name!r}, which {what}",
            remedy,
        )  # fmt: skip
        return
    for name, read in _TERMS.items():
        mine, theirs = read(spec), read(owner)
        if mine != theirs:
            remedy = "Both charge one account: write the same in both files."
            yield _problem(file, name, f"{theirs}, as {owner.name!r} has it", f"{mine}", remedy)


def _of_source(
    file: DatasetFile, spec: PrivateDatasetSpec, others: Sequence[DatasetFile]
) -> Iterator[Problem]:
    mine = source_places(spec.source.path)
    for other in others:
        if not isinstance(other.spec, PrivateDatasetSpec) or other.spec.name == spec.name:
            continue
        if other.spec.account != spec.account and mine & source_places(other.spec.source.path):
            yield _problem(
                file,
                "source.path",
                "records that no other account pays for",
                f"{spec.source.path}, which {other.spec.name!r} ({other.path}) reads",
                f"Write shares_records_with: {other.spec.account} so that both spend one budget, "
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


def _problem(file: DatasetFile, field: str, expected: str, got: str, remedy: str) -> Problem:
    return Problem(file=str(file.path), field=field, expected=expected, got=got, remedy=remedy)
