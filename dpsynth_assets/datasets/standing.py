"""Which of the declared dataset files can be used, and what is wrong with the others.

A file that is broken, a name that two files have, and a base that nobody declares each cost only
the files they are in: all others are used.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpsynth_assets.datasets.files import (
    DatasetFile,
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
            file=str(file.path),
            field="public_data",
            expected="the name of a declared public base",
            got=repr(file.spec.public_data),
            remedy=_remedy(file.spec.public_data, bases, refused),
        )
        for file in files
        if isinstance(file.spec, PrivateDatasetSpec) and file.spec.public_data not in bases
    ]


def _remedy(name: str, bases: Collection[str], refused: Mapping[str, Path]) -> str:
    if name in refused:
        return f"{refused[name]} declares it but has mistakes: mend that file first."
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
