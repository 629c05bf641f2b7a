"""Declaration of a benchmark: datasets, methods, budgets and seeds whose corpora are compared."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from dpsynth_assets.datasets.evaluation_section import EncoderSpec
from dpsynth_assets.datasets.fields import (
    IS_PATH,
    DatasetFileError,
    Declaration,
    Name,
    Problem,
    PublicWord,
    Refusal,
    twice,
)
from dpsynth_assets.datasets.files import (
    BENCHMARK,
    dataset_folders,
    find_dataset_files,
    read_documents,
    resolve_paths,
    validated,
)
from dpsynth_assets.datasets.public_spec import PublicDataSpec
from dpsynth_assets.datasets.standing import private_files

Reference = Literal["public_only", "one_real_example", "real_data"]
REFERENCES: tuple[Reference, ...] = ("public_only", "one_real_example", "real_data")
"""Corpora that no method wrote: the floor, the ceiling, and real records."""


class BenchmarkDataset(Declaration):
    """A public corpus that stands in the place of private records.

    Its scores are shown as they are: never name records of people here.
    """

    path: Annotated[str, IS_PATH]
    """CSV or Parquet file of records that may be read by anyone."""
    public: Literal[True]
    """true: anyone may read these records. Their scores are shown without noise."""
    text: str = "text"
    """Column of texts."""
    label: str | None = None
    """Column of labels; none: unlabelled."""
    label_texts: dict[PublicWord, str] = Field(default_factory=dict)
    """How prompts word each label; records of other labels are left out. Empty: the labels of the
    file as they are."""
    domain: str = Field(min_length=1, max_length=200)
    """What the texts are, in public words."""
    held_out: int = Field(1_000, ge=100)
    """Records that score, a fifth of all at most (records)."""
    scored_rows: int | None = Field(None, ge=1)
    """Rows that every corpus of this dataset is scored on, for lines whose budget buys fewer rows
    than the benchmark asks for; none: those of the benchmark (rows)."""
    max_characters: int | None = Field(None, ge=20)
    """Texts are cut at the end of a sentence to this number of characters; none: not cut."""
    documents: Annotated[str | None, IS_PATH] = None
    """CSV or Parquet file of public documents, column `text` and perhaps `label`; none: the base
    invents them from domain and labels."""
    declared: dict[str, Any] = Field(default_factory=dict)
    """Further fields of its dataset file (docs/datasets.md)."""


class Budgets(Declaration):
    """Cells of a line: every ε with every number of records."""

    epsilons: list[float] = Field(min_length=1)
    """Budgets ε (no unit)."""
    records: list[int] = Field(min_length=1)
    """Most source records (records)."""
    seeds: int | None = Field(None, ge=1, le=100)
    """Runs of these cells; none: those of the benchmark."""
    datasets: list[Name] | None = None
    """Names of the datasets with these cells; none: all."""


class BenchmarkMethod(Declaration):
    """A line of the leaderboard: a method with settings."""

    name: Name
    """Of the line, in asset keys and tables."""
    method: str
    """Name of a registered method."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """As in a dataset file."""
    declared: dict[str, Any] = Field(default_factory=dict)
    """Further fields of the dataset file, e.g. `methods`."""
    datasets: list[Name] | None = None
    """Names of the datasets it runs on; none: all."""
    grid: list[Budgets] | None = None
    """Budgets and sizes of this line; none: those of the benchmark."""


class BenchmarkSpec(Declaration):
    """One benchmark: everything that its cells share, and what they are."""

    name: Name
    """First part of its asset keys; folder of its results."""
    public: dict[str, Any] = Field(default_factory=lambda: {"language_model": {"kind": "smollm2"}})
    """Fields of the public base of every dataset (docs/datasets.md); each dataset adds its own
    domain."""
    invented_documents: int = Field(1_500, ge=50)
    """Public documents that a base invents (documents)."""
    datasets: dict[Name, BenchmarkDataset] = Field(min_length=1)
    """Corpora by name."""
    methods: list[BenchmarkMethod] = Field(min_length=1)
    """Lines."""
    references: list[Reference] = Field(list(REFERENCES))
    """Floor, ceiling and real records, at the same size."""
    grid: list[Budgets] = Field(min_length=1)
    """Budgets and sizes of every line."""
    seeds: int = Field(1, ge=1, le=100)
    """Runs of every cell."""
    rows: int = Field(400, ge=1)
    """Rows of a corpus where they are free."""
    scored_rows: int = Field(380, ge=1)
    """Rows that every corpus is scored on; one with fewer has no scores (rows)."""
    next_word: bool = True
    """Whether a next-word model is trained on every corpus."""
    encoder: EncoderSpec | None = None
    """Encoder that is fine-tuned on every corpus that is scored from then on; none: not trained."""
    delta: float = Field(1e-6, gt=0, lt=1)
    """Public constant δ."""

    def refusals(self) -> Iterator[Refusal]:
        """Lines of one name, or on a dataset that is not declared."""
        names = [line.name for line in self.methods]
        yield from twice("methods", names, "Rename one.")
        for taken in sorted({*names} & {*self.references, "leaderboard"}):
            got = f"{taken!r}, a reference's"
            yield Refusal("methods", "names of lines", "Rename it.", got)
        named = [("methods", line.name, line.datasets) for line in self.methods]
        named += [("grid", "an entry", each.datasets) for each in self.grid]
        for line in self.methods:
            own = line.grid or ()
            named += [("methods", f"the grid of {line.name}", each.datasets) for each in own]
        for field, at, datasets in named:
            for unknown in sorted({*(datasets or ())} - {*self.datasets}):
                yield Refusal(field, "declared datasets", "Declare it.", f"{unknown!r} at {at}")

    @property
    def sizes(self) -> list[tuple[float, int]]:
        """Every ε and number of records of any line, each once, in the order of the grid."""
        own = (_pairs(line.grid or ()) for line in self.methods)
        return list(dict.fromkeys(pair for pairs in (_pairs(self.grid), *own) for pair in pairs))

    def sizes_of(self, line: BenchmarkMethod, dataset: str) -> dict[tuple[float, int], int]:
        """Every ε and number of records of a line on a dataset -> its number of runs (seeds)."""
        runs: dict[tuple[float, int], int] = {}
        for each in self.grid if line.grid is None else line.grid:
            if all(own is None or dataset in own for own in (line.datasets, each.datasets)):
                for pair in _pairs([each]):
                    runs[pair] = max(runs.get(pair, 0), each.seeds or self.seeds)
        return runs

    def scored_rows_of(self, dataset: str) -> int:
        """Rows that every corpus of a dataset is scored on."""
        return self.datasets[dataset].scored_rows or self.scored_rows

    def public_fields(self, dataset: str, labels: Sequence[str]) -> dict[str, Any]:
        """Fields of a dataset's public base, given its labels as prompts word them."""
        own = self.datasets[dataset]
        fields = {**self.public, "domain": own.domain}
        if own.documents is not None:
            return fields
        labelled = {"labels": list(labels)} if labels else {}
        return {"invented": {"documents": self.invented_documents, **labelled}, **fields}


def _pairs(grid: Sequence[Budgets]) -> Iterator[tuple[float, int]]:
    return ((e, n) for each in grid for n in each.records for e in each.epsilons)


def benchmark_files(folders: Sequence[Path]) -> list[tuple[Path, BenchmarkSpec | Problem]]:
    """Reads every benchmark below `folders`, or what is wrong with it; no record is read."""
    return [(path, found) for path in find_dataset_files(folders) for found in _parsed(path)]


def found_benchmark(name: str | Path) -> BenchmarkSpec:
    """Finds a benchmark by its name in `defs` and the folders of DPSYNTH_DATASETS, or by a file.

    Raises:
        DatasetFileError: There is none, or several, or something is wrong with it.
    """
    is_file = Path(name).suffix in (".yaml", ".yml")
    known = (
        [(Path(name), each) for each in _parsed(Path(name))]
        if is_file
        else benchmark_files(dataset_folders())
    )
    named = {path for path, each in known if is_file or getattr(each, "name", None) == name}
    parsed = [each for path, each in known if path in named]
    if problems := [each for each in parsed if isinstance(each, Problem)]:
        raise DatasetFileError(problems)
    specs = [each for each in parsed if isinstance(each, BenchmarkSpec)]
    if len(specs) != 1:
        others = sorted(each.name for _, each in known if isinstance(each, BenchmarkSpec))
        expected = f"the name of one declared benchmark, or a file with one of type {BENCHMARK}"
        remedy = f"Declared are: {', '.join(others) or 'none'}."
        raise DatasetFileError([Problem("benchmark", expected, repr(name), remedy)])
    return specs[0]


def private_sources(spec: BenchmarkSpec, file: Path) -> Iterator[Problem]:
    """Reports files of a benchmark that a private declaration reads, or may read.

    Scores of a benchmark are shown without noise: private records have no place in it. A copy of
    such records under another name is found when it is read (`running.DatasetBench.cohort`).
    """
    places = [
        (f"datasets.{name}.{field}", Path(path))
        for name, each in spec.datasets.items()
        for field, path in (("path", each.path), ("documents", each.documents))
        if path is not None
    ]
    private = {path: said for path, *said in private_files({path for _, path in places})}
    for place, path in places:
        if path in private:
            got, remedy = private[path]
            yield Problem(place, "records that anyone may read", got, remedy, file=str(file))


def _parsed(path: Path) -> list[BenchmarkSpec | Problem]:
    """The benchmarks of a file, their paths resolved, and what is wrong with others."""
    documents, problems = read_documents(path)
    found: list[BenchmarkSpec | Problem] = []
    for document in documents:
        if isinstance(document, Mapping) and document.get("type") == BENCHMARK:
            found += _benchmark(document, path)
    return [*found, *(problems if found else [])]


def _benchmark(document: Mapping[str, Any], path: Path) -> list[BenchmarkSpec | Problem]:
    spec = validated(BenchmarkSpec, document, path)
    if isinstance(spec, list):
        return [*spec]
    file = resolve_paths(spec, path)
    refused = [*private_sources(file, path), *_base_problems(file, path)]
    return [*refused] if refused else [file]


def _base_problems(spec: BenchmarkSpec, path: Path) -> Iterator[Problem]:
    """Reports public bases that do not hold."""
    for name, each in spec.datasets.items():
        fields = spec.public_fields(name, list(each.label_texts.values()))
        base = validated(PublicDataSpec, {"attributes": {"name": spec.name, **fields}}, path)
        if isinstance(base, list):
            yield from (replace(problem, field=f"public.{problem.field}") for problem in base)
        elif each.documents is None and not base.invents_documents:
            expected = "a file of public documents, or a language model that invents them"
            field = f"datasets.{name}.documents"
            yield Problem(field, expected, "neither", "Fix the file.", file=str(path))
