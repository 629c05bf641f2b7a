"""Reading dataset files: YAML in, validated declarations or problems out.

A file is a Dagster component: `type: dpsynth_assets.components.PrivateDataset` (or `.PublicData`)
and `attributes:`. `{{ env.NAME }}` in a string is read from the environment.
"""

import difflib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import ValidationError

from dpsynth_assets import paths
from dpsynth_assets.datasets.fields import Declaration
from dpsynth_assets.datasets.private_spec import PrivateDatasetSpec
from dpsynth_assets.datasets.problems import DatasetFileError, Problem, problems_of, suggest
from dpsynth_assets.datasets.public_spec import PublicDataSpec
from dpsynth_assets.datasets.source_section import SourceSpec
from dpsynth_assets.datasets.yaml_documents import read_documents

COMPONENTS: dict[str, type[PrivateDatasetSpec] | type[PublicDataSpec]] = {
    "dpsynth_assets.components.PrivateDataset": PrivateDatasetSpec,
    "dpsynth_assets.components.PublicData": PublicDataSpec,
}

BENCHMARK = "dpsynth_assets.components.Benchmark"
"""A component over public corpora: no dataset file (`datasets.benchmark_spec`)."""

_ENVIRONMENT = re.compile(r"\{\{\s*env(?:\.(\w+)|\(\s*['\"](\w+)['\"]\s*\))\s*\}\}")
_SHOWABLE = re.compile(r"DPSYNTH_(REAL_DATA|DATA_\w+)")
"""Variables that a declaration, which is shown, may quote: any other may hold a secret."""
_GLOB = re.compile(r"[*?\[]")

SpecT = TypeVar("SpecT", bound=PrivateDatasetSpec | PublicDataSpec)
ModelT = TypeVar("ModelT", bound=Declaration)


@dataclass(frozen=True, kw_only=True)
class DatasetFile:
    """One declaration and the file it came from; its source paths are resolved."""

    path: Path
    spec: PrivateDatasetSpec | PublicDataSpec


class SecretVariableError(ValueError):
    """A declaration, which is shown, asks for a variable that may hold a secret."""

    def __init__(self, name: str) -> None:
        """Names the variable, never its value."""
        self.name = name
        super().__init__(
            f"Expected a variable named DPSYNTH_DATA_…, got {name}: declarations are shown and "
            "stored, and others may hold a secret."
        )


def dataset_folders(defs: Path | None = None) -> list[Path]:
    """Lists where dataset files lie: the package's `defs`, then the folders of DPSYNTH_DATASETS."""
    defs = defs or Path(paths.__file__).parent / "defs"
    extra = os.environ.get("DPSYNTH_DATASETS", "").split(os.pathsep)
    return [defs, *(Path(folder).expanduser() for folder in extra if folder.strip())]


def find_dataset_files(folders: Sequence[Path]) -> list[Path]:
    """Lists the YAML files below `folders`, sorted, each once.

    Raises:
        DatasetFileError: A folder does not exist.
    """
    if missing := missing_folders(folders):
        raise DatasetFileError(missing)
    found = {
        file.resolve()
        for folder in folders
        for pattern in ("*.yaml", "*.yml")
        for file in folder.rglob(pattern)
    }
    return sorted(found)


def missing_folders(folders: Sequence[Path]) -> list[Problem]:
    """Reports folders that are not there."""
    expected, remedy = "a folder of dataset files", "Fix DPSYNTH_DATASETS, or make the folder."
    missing = [folder for folder in folders if not folder.is_dir()]
    return [Problem("", expected, "none there", remedy, file=str(each)) for each in missing]


def repeated_names(files: Sequence[DatasetFile]) -> list[Problem]:
    """Reports every file whose name another of its kind has: they would share a ledger account.

    A partitioned dataset also has the names of its cohorts, those to come included.
    """
    holders: dict[tuple[type, str], list[DatasetFile]] = {}
    for file in files:
        holders.setdefault((type(file.spec), file.spec.name), []).append(file)
    shared = [
        (file, next(each for each in sharing if each is not file))
        for sharing in holders.values()
        if len(sharing) > 1
        for file in sharing
    ]
    partitioned = [file for file in files if getattr(file.spec, "cohorts", None) is not None]
    for other in partitioned:
        for file in (each for each in files if _is_cohort_of(each, other)):
            shared += [(file, other), (other, file)]
    return [
        Problem(
            "name",
            "a name of its own",
            f"{file.spec.name!r}, which {other.path} has",
            "Rename one of the two: the name is the ledger account.",
            file=str(file.path),
        )
        for file, other in shared
    ]


def _is_cohort_of(file: DatasetFile, other: DatasetFile) -> bool:
    """Says whether a private dataset has the name of a cohort of a partitioned one."""
    rule = getattr(other.spec, "cohorts", None)
    key = file.spec.name.removeprefix(f"{other.spec.name}_")
    private = isinstance(file.spec, type(other.spec))
    return rule is not None and private and key != file.spec.name and rule.has_key(key)


def parse_dataset_file(
    path: Path, *, foreign_ok: bool = False
) -> tuple[list[DatasetFile], list[Problem]]:
    """Parses one file (it may hold several YAML documents). Reads no record.

    Args:
        path: The YAML file.
        foreign_ok: Pass over documents of other components instead of reporting them.

    Returns:
        The declarations that hold, and the problems of the others.
    """
    documents, problems = read_documents(path)
    files: list[DatasetFile] = []
    for document in documents:
        parsed = _parse_document(document, path, foreign_ok)
        files += [part for part in parsed if isinstance(part, DatasetFile)]
        problems += [part for part in parsed if isinstance(part, Problem)]
    return files, problems


def resolve_paths(spec: SpecT, file: Path) -> SpecT:
    """Makes relative source paths absolute: project root first, then the folder of `file`."""
    return cast(SpecT, spec.model_copy(update=_located_parts(spec, file)))


def _located_parts(spec: PrivateDatasetSpec | PublicDataSpec, file: Path) -> dict[str, Any]:
    if isinstance(spec, PrivateDatasetSpec):
        located: dict[str, Any] = {"source": _resolved(spec.source, file)}
        if spec.evaluation.canaries is not None:
            canaries = locate(spec.evaluation.canaries, file)
            located["evaluation"] = spec.evaluation.model_copy(update={"canaries": canaries})
        if spec.secrets is not None:
            located["secrets"] = spec.secrets.located(lambda path: locate(path, file))
        return located
    if isinstance(spec.source, list):
        parts = [(part, _resolved(part.source, file)) for part in spec.source]
        return {"source": [part.model_copy(update={"source": found}) for part, found in parts]}
    return {} if spec.source is None else {"source": _resolved(spec.source, file)}


def locate(path: str, file: Path) -> str:
    """Finds where a path of dataset file `file` points; addresses (`hf://…`) stay as they are."""
    if "://" in path:
        return path
    given = Path(path).expanduser()
    candidates = [paths.project_root() / given, file.resolve().parent / given]
    return str(next(filter(_exists, candidates), candidates[0]))


def render_environment(value: Any) -> Any:
    """Replaces `{{ env.NAME }}` in every string.

    Raises:
        KeyError: A variable is not set; its name is the only argument.
        SecretVariableError: A variable has another name than those for declarations.
    """
    if isinstance(value, str):
        return _ENVIRONMENT.sub(lambda match: _variable(match[1] or match[2]), value)
    if isinstance(value, Mapping):
        return {key: render_environment(part) for key, part in value.items()}
    return [render_environment(part) for part in value] if isinstance(value, list) else value


def _variable(name: str) -> str:
    if not _SHOWABLE.fullmatch(name):
        raise SecretVariableError(name)
    return os.environ[name]


def _resolved(source: SourceSpec, file: Path) -> SourceSpec:
    return source.model_copy(update={"path": locate(source.path, file)})


def _exists(path: Path) -> bool:
    if path.exists() or not _GLOB.search(str(path)):
        return path.exists()
    return any(True for _ in Path(path.anchor).glob(str(path.relative_to(path.anchor))))


def _parse_document(document: Any, path: Path, foreign_ok: bool) -> list[DatasetFile | Problem]:
    kind = document.get("type") if isinstance(document, Mapping) else None
    if not isinstance(kind, str) or kind not in COMPONENTS:
        if foreign_ok and _is_foreign(document, kind):
            return []
        got = "none" if kind is None else repr(kind)[:80]
        remedy = suggest(str(kind), list(COMPONENTS))
        return [Problem("type", "a dataset component", got, remedy, file=str(path))]
    found = validated(COMPONENTS[kind], document, path)
    if isinstance(found, list):
        return [*found]
    return [DatasetFile(path=path, spec=resolve_paths(found, path))]


def validated(
    model: type[ModelT], document: Mapping[str, Any], path: Path
) -> ModelT | list[Problem]:
    """The declaration in a document of file `path`; or else what is wrong with it."""
    attributes = document.get("attributes") or {}
    try:
        attributes = render_environment(attributes)
        return model.model_validate(attributes)
    except KeyError as error:
        name = error.args[0]
        expected = f"the environment variable {name}"
        remedy = f"Export {name}, or write the value into the file."
        return [Problem("attributes", expected, "none set", remedy, file=str(path))]
    except SecretVariableError as error:
        expected = "a variable named DPSYNTH_DATA_…"
        remedy = "Declarations are shown, and others may hold a secret: set one of such a name."
        return [Problem("attributes", expected, error.name, remedy, file=str(path))]
    except ValidationError as error:
        return problems_of(error, path, model, attributes)


def _is_foreign(document: Any, kind: Any) -> bool:
    """Says whether a document is another component's, and not one of ours with a misspelt type."""
    if kind is None:
        return not (isinstance(document, Mapping) and "attributes" in document)
    if kind == BENCHMARK:
        return True
    package = __name__.partition(".")[0]
    ours = str(kind).partition(".")[0] == package
    return not ours and not difflib.get_close_matches(str(kind), COMPONENTS, n=1, cutoff=0.8)
