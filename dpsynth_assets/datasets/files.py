"""Reading dataset files: YAML in, validated declarations or problems out.

A file is a Dagster component: `type: dpsynth_assets.components.PrivateDataset` (or `.PublicData`)
and `attributes:`. `{{ env.NAME }}` in a string is read from the environment. YAML is read as plain
values: no Python objects, no key twice, no page that means billions.
"""

import difflib
import os
import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from dpsynth_assets import paths
from dpsynth_assets.datasets.fields import (
    IS_PATH,
    DatasetFileError,
    Declaration,
    Problem,
    problems_of,
    suggest,
)
from dpsynth_assets.datasets.private_spec import PrivateDatasetSpec
from dpsynth_assets.datasets.public_spec import PublicDataSpec

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

LARGEST_FILE_BYTES = 1 << 20
LARGEST_FILE_VALUES = 100_000
"""Values of a file once its aliases are written out; a few lines of YAML can mean billions."""
DEEPEST_FILE_VALUE = 50
"""Levels of lists and mappings in each other."""

ModelT = TypeVar("ModelT", bound=Declaration)


@dataclass(frozen=True, kw_only=True)
class DatasetFile:
    """One declaration and the file it came from; its source paths are resolved."""

    path: Path
    spec: PrivateDatasetSpec | PublicDataSpec


def dataset_folders(defs: Path | None = None) -> list[Path]:
    """Lists where dataset files lie: the package's `defs`, then the folders of DPSYNTH_DATASETS."""
    defs = defs or Path(paths.__file__).parent / "defs"
    extra = os.environ.get("DPSYNTH_DATASETS", "").split(os.pathsep)
    return [defs, *(Path(folder).expanduser() for folder in extra if folder.strip())]


def find_dataset_files(folders: Sequence[Path]) -> list[Path]:
    """Lists the YAML files below `folders`, sorted, each once; none where there is no folder."""
    patterns = ("*.yaml", "*.yml")
    found = (file for folder in folders for pattern in patterns for file in folder.rglob(pattern))
    return sorted({file.resolve() for file in found})


def missing_folders(folders: Sequence[Path]) -> list[Problem]:
    """Reports folders that are not there."""
    expected, remedy = "a folder of dataset files", "Fix DPSYNTH_DATASETS, or make the folder."
    missing = [folder for folder in folders if not folder.is_dir()]
    return [Problem("", expected, "none there", remedy, file=str(each)) for each in missing]


def repeated_names(files: Sequence[DatasetFile]) -> list[Problem]:
    """Reports every file whose name another of its kind has: they would share a ledger account.

    A partitioned dataset also has the names of its cohorts, those to come included.
    """
    found = []
    for file in files:
        others = (each for each in files if each is not file and _share_a_name(each, file))
        if (other := next(others, None)) is not None:
            got = f"{file.spec.name!r}, which {other.path} has"
            remedy = "Rename one of the two: the name is the ledger account."
            found.append(Problem("name", "a unique name", got, remedy, file=str(file.path)))
    return found


def _share_a_name(one: DatasetFile, other: DatasetFile) -> bool:
    """Says whether two files have one name, or one that of a cohort of the other."""
    first, second = one.spec, other.spec
    if isinstance(first, PrivateDatasetSpec) != isinstance(second, PrivateDatasetSpec):
        return False
    return first.name == second.name or _is_cohort(first, second) or _is_cohort(second, first)


def _is_cohort(spec: PrivateDatasetSpec | PublicDataSpec, whole: Any) -> bool:
    rule = getattr(whole, "cohorts", None)
    key = spec.name.removeprefix(f"{whole.name}_")
    return rule is not None and key != spec.name and bool(rule.has_key(key))


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
        if isinstance(parsed, DatasetFile):
            files.append(parsed)
        else:
            problems += parsed
    return files, problems


def resolve_paths(declared: ModelT, file: Path) -> ModelT:
    """Makes relative paths absolute: project root first, then the folder of `file`."""
    changed = {}
    for name, field in type(declared).model_fields.items():
        value = getattr(declared, name)
        is_path = IS_PATH in field.metadata and value is not None
        found = locate(value, file) if is_path else _resolved(value, file)
        if found != value:
            changed[name] = found
    return declared.model_copy(update=changed)


def _resolved(value: Any, file: Path) -> Any:
    if isinstance(value, list):
        return [_resolved(each, file) for each in value]
    if isinstance(value, dict):
        return {name: _resolved(each, file) for name, each in value.items()}
    return resolve_paths(value, file) if isinstance(value, Declaration) else value


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
        DatasetFileError: A variable is not set, or is none of those that a declaration may show.
    """
    if isinstance(value, str):
        return _ENVIRONMENT.sub(lambda match: _variable(match[1] or match[2]), value)
    if isinstance(value, Mapping):
        return {key: render_environment(part) for key, part in value.items()}
    return [render_environment(part) for part in value] if isinstance(value, list) else value


def _variable(name: str) -> str:
    if not _SHOWABLE.fullmatch(name):
        remedy = "Use such a variable: declarations are shown, and others may hold secrets."
        raise _refused("a variable named DPSYNTH_DATA_…", name, remedy)
    if name not in os.environ:
        remedy = f"Export {name}, or write the value into the file."
        raise _refused(f"the environment variable {name}", "none set", remedy)
    return os.environ[name]


def _refused(expected: str, got: str, remedy: str) -> DatasetFileError:
    """Names the variable, never its value."""
    return DatasetFileError([Problem("attributes", expected, got, remedy)])


def _exists(path: Path) -> bool:
    if path.exists() or not _GLOB.search(str(path)):
        return path.exists()
    return any(True for _ in Path(path.anchor).glob(str(path.relative_to(path.anchor))))


def _parse_document(document: Any, path: Path, foreign_ok: bool) -> DatasetFile | list[Problem]:
    kind = document.get("type") if isinstance(document, Mapping) else None
    if not isinstance(kind, str) or kind not in COMPONENTS:
        if foreign_ok and _is_foreign(document, kind):
            return []
        got = "none" if kind is None else repr(kind)[:80]
        remedy = suggest(str(kind), list(COMPONENTS))
        return [Problem("type", "a dataset component", got, remedy, file=str(path))]
    found = validated(COMPONENTS[kind], document, path)
    if isinstance(found, list):
        return found
    return DatasetFile(path=path, spec=resolve_paths(found, path))


def validated(
    model: type[ModelT], document: Mapping[str, Any], path: Path
) -> ModelT | list[Problem]:
    """The declaration in a document of file `path`; or else what is wrong with it."""
    attributes = document.get("attributes") or {}
    try:
        attributes = render_environment(attributes)
        return model.model_validate(attributes)
    except DatasetFileError as error:
        return [replace(problem, file=str(path)) for problem in error.problems]
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


class TooLargeError(yaml.YAMLError):
    """A file, or what its aliases stand for, is too large for a dataset file."""


class _StrictLoader(yaml.CSafeLoader):
    """Refuses a key that is written twice, where YAML would keep the last, and merges without end.

    A subclass of the safe loader: no Python objects are built.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Hashable] = set()
        for key, _ in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                continue
            name = self.construct_object(key, deep=True)
            if isinstance(name, Hashable) and name in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {name!r} is written twice", key.start_mark
                )
            if isinstance(name, Hashable):
                seen.add(name)
        return super().construct_mapping(node, deep=deep)

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        super().flatten_mapping(node)
        if len(node.value) > LARGEST_FILE_VALUES:
            raise TooLargeError("merge keys (<<) that repeat without end")


def _loaded(path: Path) -> list[Any]:
    """Loads the documents of a file.

    Raises:
        TooLargeError: It is larger than a megabyte, means more than 100,000 values, or nests them
            deeper than 50 levels.
    """
    with path.open("rb") as file:
        content = file.read(LARGEST_FILE_BYTES + 1)
    if len(content) > LARGEST_FILE_BYTES:
        raise TooLargeError(f"more than {LARGEST_FILE_BYTES >> 20} MiB")
    documents = list(yaml.load_all(content.decode("utf-8"), Loader=_StrictLoader))
    waiting, values, deepest = [(document, 1) for document in documents], 0, 0
    while waiting:
        value, depth = waiting.pop()
        values, deepest = values + 1, max(deepest, depth)
        if values > LARGEST_FILE_VALUES:
            raise TooLargeError("aliases that expand to too many values")
        if isinstance(value, Mapping):
            waiting.extend((inner, depth + 1) for inner in value.values())
        elif isinstance(value, list):
            waiting.extend((inner, depth + 1) for inner in value)
    if deepest > DEEPEST_FILE_VALUE:
        raise TooLargeError("values nested too deeply")
    return documents


def read_documents(path: Path) -> tuple[list[Any], list[Problem]]:
    """Reads the documents of one file that are not empty, or says what is wrong with it."""
    try:
        documents = _loaded(path)
    except (FileNotFoundError, IsADirectoryError):
        got, remedy = "none there", "Fix the path, or write one with `dpsynth init`."
    except OSError as error:
        got, remedy = error.strerror or "an unreadable file", "Make it readable."
    except UnicodeDecodeError:
        got, remedy = "bytes that are not UTF-8", "Save it as UTF-8 text."
    except TooLargeError as error:
        got, remedy = str(error), "Shorten it: a dataset file is a page of settings."
    except RecursionError:  # Of a key that is a list of lists.
        got, remedy = "values nested too deeply", "Nest them as the template does."
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        got = f"{getattr(error, 'problem', None) or 'text that is not YAML'}{where}"
        remedy = "Fix the line: indent with spaces, quote text with ':' or '#'."
    else:
        return [document for document in documents if document is not None], []
    return [], [Problem("", "a YAML file", got, remedy, file=str(path))]
