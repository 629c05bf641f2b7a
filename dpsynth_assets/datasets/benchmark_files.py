"""Reading benchmark files: YAML in, validated benchmarks or problems out."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dpsynth_assets.datasets.benchmark_spec import BenchmarkSpec
from dpsynth_assets.datasets.files import (
    BENCHMARK,
    SecretVariableError,
    dataset_folders,
    find_dataset_files,
    locate,
    render_environment,
)
from dpsynth_assets.datasets.private_files import PrivateFiles
from dpsynth_assets.datasets.problems import DatasetFileError, Problem
from dpsynth_assets.datasets.public_spec import PublicDataSpec
from dpsynth_assets.datasets.yaml_documents import read_documents


@dataclass(frozen=True, kw_only=True)
class BenchmarkFile:
    """One benchmark and the file it came from; its paths are resolved."""

    path: Path
    spec: BenchmarkSpec


def benchmark_files(folders: Sequence[Path]) -> list[BenchmarkFile | Problem]:
    """Reads every benchmark below `folders`, or what is wrong with it; no record is read."""
    found: list[BenchmarkFile | Problem] = []
    for path in find_dataset_files([folder for folder in folders if folder.is_dir()]):
        found += _parsed(path)
    return found


def read_benchmark(path: Path) -> BenchmarkSpec:
    """Reads the benchmark of one file.

    Raises:
        DatasetFileError: There is none, or something is wrong with it.
    """
    parsed = _parsed(path)
    problems = [each for each in parsed if isinstance(each, Problem)]
    files = [each for each in parsed if isinstance(each, BenchmarkFile)]
    if problems:
        raise DatasetFileError(problems)
    if len(files) != 1:
        raise DatasetFileError(
            [
                Problem(
                    file=str(path),
                    field="type",
                    expected=f"one document of the type {BENCHMARK}",
                    got=str(len(files)),
                    remedy="See docs/leaderboard.md for an example.",
                )
            ]
        )
    return files[0].spec


def found_benchmark(name: str) -> BenchmarkSpec:
    """Finds a benchmark by its name in `defs` and the folders of DPSYNTH_DATASETS, or by a file.

    Raises:
        DatasetFileError: There is none, or something is wrong with it.
    """
    if Path(name).suffix in (".yaml", ".yml"):
        return read_benchmark(Path(name))
    found = benchmark_files(dataset_folders())
    named = [each for each in found if isinstance(each, BenchmarkFile) and each.spec.name == name]
    if named:
        return read_benchmark(named[0].path)
    known = sorted(each.spec.name for each in found if isinstance(each, BenchmarkFile))
    raise DatasetFileError(
        [
            Problem(
                file="",
                field="benchmark",
                expected="the name of a declared benchmark or a YAML file",
                got=repr(name),
                remedy=f"Declared are: {', '.join(known) or 'none'}.",
            )
        ]
    )


def private_sources(spec: BenchmarkSpec, file: Path) -> list[Problem]:
    """Reports files of a benchmark that a private declaration reads, or may read.

    Scores of a benchmark are shown without noise: private records have no place in it. A copy of
    such records under another name is found when it is read (`running.DatasetBench.cohort`).
    """
    private = PrivateFiles.of_installation()
    named = [
        (f"datasets.{name}.{field}", Path(path))
        for name, each in spec.datasets.items()
        for field, path in (("path", each.path), ("documents", each.documents))
        if path is not None
    ]
    problems = [(field, private.problem(path)) for field, path in named]
    return [
        Problem(
            file=str(file),
            field=field,
            expected="records that anyone may read",
            got=problem[0],
            remedy=problem[1],
        )
        for field, problem in problems
        if problem is not None
    ]


def located(spec: BenchmarkSpec, file: Path) -> BenchmarkSpec:
    """Makes relative paths absolute: project root first, then the folder of `file`."""
    datasets = {
        name: each.model_copy(
            update={
                "path": locate(each.path, file),
                "documents": None if each.documents is None else locate(each.documents, file),
            }
        )
        for name, each in spec.datasets.items()
    }
    return spec.model_copy(update={"datasets": datasets})


def _parsed(path: Path) -> list[BenchmarkFile | Problem]:
    documents, problems = read_documents(path)
    found: list[BenchmarkFile | Problem] = []
    for document in documents:
        if isinstance(document, Mapping) and document.get("type") == BENCHMARK:
            found += _benchmark(document, path)
    return [*found, *(problems if found else [])]


def _benchmark(document: Mapping[str, Any], path: Path) -> list[BenchmarkFile | Problem]:
    try:
        spec = BenchmarkSpec.model_validate(render_environment(document.get("attributes") or {}))
    except KeyError as error:
        return [_problem(path, "attributes", f"the environment variable {error.args[0]}", "none")]
    except SecretVariableError as error:
        return [_problem(path, "attributes", "variables that hold no secret", error.name)]
    except ValidationError as error:
        return [
            _problem(
                path,
                ".".join(map(str, each["loc"])),
                "a value that the benchmark can use",
                each["msg"],
            )
            for each in error.errors()
        ]
    file = located(spec, path)
    refused = [*private_sources(file, path), *_base_problems(file, path)]
    return [*refused] if refused else [BenchmarkFile(path=path, spec=file)]


def _base_problems(spec: BenchmarkSpec, path: Path) -> Iterator[Problem]:
    """Reports public bases that do not hold."""
    for name, each in spec.datasets.items():
        labels = list(each.label_texts.values())
        try:
            base = PublicDataSpec.model_validate(
                {"name": spec.name, **spec.public_fields(name, labels)}
            )
        except ValidationError as error:
            for found in error.errors():
                field = ".".join(["public", *map(str, found["loc"])])
                yield _problem(path, field, "a field of a public base", found["msg"])
            continue
        if each.documents is None and not base.invents_documents:
            yield _problem(
                path,
                f"datasets.{name}.documents",
                "a file of public documents, or a language model that invents them",
                "neither",
            )


def _problem(path: Path, field: str, expected: str, got: str) -> Problem:
    return Problem(file=str(path), field=field, expected=expected, got=got, remedy="Mend the file.")
