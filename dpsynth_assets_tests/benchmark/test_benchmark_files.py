"""Benchmark files: read strictly, kept apart from dataset files, never over private records."""

import shutil

import polars as pl
import pytest

from dpsynth_assets.benchmark.running import DatasetBench, places
from dpsynth_assets.datasets import dataset_folders, standing
from dpsynth_assets.datasets.benchmark_spec import benchmark_files, found_benchmark
from dpsynth_assets.datasets.fields import DatasetFileError, Problem
from dpsynth_assets.paths import Home
from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.sensitive.fingerprints import (
    Fingerprints,
    Prints,
    Reader,
    store_key,
    text_prints,
)
from dpsynth_assets.sensitive.private_files import PrivateFiles
from dpsynth_assets_tests.benchmark.conftest import ROOT, attributes, write
from dpsynth_assets_tests.declared import FIELDS, written


def problem(file) -> str:
    with pytest.raises(DatasetFileError) as refused:
        found_benchmark(file)
    return str(refused.value)


def write_letters(letters, **changes):
    """Writes the benchmark with other fields of its one dataset."""
    own = attributes(letters)["datasets"]["letters"] | changes
    return write(letters, datasets={"letters": own})


def cells_of(entry, seed=0, dataset="letters", line="evolved"):
    """A line's cells of an entry of the grid, as `places` names them."""
    return [
        (seed, dataset, line, epsilon, records)
        for records in entry["records"]
        for epsilon in entry["epsilons"]
    ]


RICH, POOR = {"epsilons": [8.0, 4.0], "records": [300]}, {"epsilons": [2.0], "records": [100]}
OWN = [{"name": "evolved", "method": "aug_pe"}, {"name": "few", "method": "aug_pe", "grid": [POOR]}]
HERE = {"datasets": ["letters"]}


@pytest.mark.parametrize(
    ("changes", "cells"),
    [
        ({"grid": [RICH], "seeds": 2}, [*cells_of(RICH), *cells_of(RICH, seed=1)]),
        ({"grid": [RICH], "methods": OWN}, [*cells_of(RICH), *cells_of(POOR, line="few")]),
        (
            {"grid": [POOR | HERE | {"seeds": 2}, POOR]},
            [*cells_of(POOR), *cells_of(POOR, dataset="notes"), *cells_of(POOR, seed=1)],
        ),
        ({"grid": [POOR | HERE]}, cells_of(POOR)),
    ],
    ids=["every seed", "a line's own budgets", "an entry's own runs", "an entry's own datasets"],
)
def test_cells_are_those_of_the_grid_and_every_seed_has_references(letters, home, changes, cells):
    own = attributes(letters)["datasets"]["letters"]
    several = any("datasets" in entry for entry in changes["grid"])
    datasets = {"letters": own, "notes": own} if several else {"letters": own}
    spec = found_benchmark(write(letters, datasets=datasets, **changes))
    made = [(p.seed, p.dataset, p.line, p.epsilon, p.records) for p in places(spec)]
    assert len(made) == len(set(made))
    assert [cell for cell in made if cell[2] not in spec.references] == cells
    seeds = range(changes.get("seeds", 1))
    lines = {(seed, line) for seed, _, line, epsilon, _ in made if epsilon is None}
    assert lines == {(seed, line) for seed in seeds for line in ("public_only", "real_data")}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"methods": [{"name": "a", "method": "aug_pe"}] * 2}, "'a' twice"),
        ({"methods": [{"name": "real_data", "method": "aug_pe"}]}, "a reference's"),
        ({"methods": [OWN[0] | {"datasets": ["news"]}]}, "declared datasets"),
        ({"public": {"language_model": {"kind": "smollm2"}, "nonsense": 1}}, "nonsense"),
        ({"grid": []}, "grid"),
        ({"grid": [POOR | {"datasets": ["news"]}]}, "'news' at an entry"),
        ({"rowz": 3}, "rowz"),
    ],
)
def test_what_cannot_be_used_is_one_line_with_its_file(letters, home, changes, told):
    file = write(letters, **changes)
    message = problem(file)
    assert told in message
    assert str(file) in message


@pytest.mark.parametrize("public", [None, False])
def test_records_must_be_declared_public(letters, home, public):
    assert "datasets.letters.public" in problem(write_letters(letters, public=public))


@pytest.mark.parametrize("field", ["path", "documents"])
@pytest.mark.parametrize("source", ["letters.csv", "", "*.csv"])
def test_the_source_of_a_private_dataset_is_refused(
    letters, home, tmp_path, monkeypatch, source, field
):
    """By any of its names: the file itself, a link to it, and a hard link."""
    kept = tmp_path / ("kept" if source else "kept[1]")
    real = kept / ("" if source else ".parts") / "letters.csv"
    real.parent.mkdir(parents=True)
    shutil.copy(letters / "letters.csv", real)
    (tmp_path / "link.csv").symlink_to(real)
    (tmp_path / "hard_link.csv").hardlink_to(real)
    private = {"name": "mine", "source": {"path": str(kept / source)}}
    written(tmp_path / "mine.yaml", FIELDS | private)
    monkeypatch.setenv("DPSYNTH_DATASETS", str(tmp_path))
    for named in (real, tmp_path / "link.csv", tmp_path / "hard_link.csv"):
        message = problem(write_letters(letters, **{field: str(named)}))
        assert f"datasets.letters.{field}: " in message
        assert "a file of the private dataset 'mine'" in message


@pytest.mark.parametrize(
    ("attributes_of_it", "expected"),
    [
        ({"name": "mine", "source": {"path": "SOURCE"}, "ownerz": ["x"]}, "dataset 'mine'"),
        ({"name": "mine", "source": {"path": "{{ env.NOT_SET }}/x.csv"}}, "cannot be read"),
        ("x", "cannot be read"),
        (
            {"name": "mine", "source": {"path": "y"}, "evaluation": {"canaries": "SOURCE"}},
            "dataset 'mine'",
        ),
    ],
)
def test_a_private_declaration_that_does_not_hold_is_private_still(
    letters, home, tmp_path, monkeypatch, attributes_of_it, expected
):
    source = str(letters / "letters.csv")
    file = written(tmp_path / "mine.yaml", attributes_of_it)
    file.write_text(file.read_text().replace("SOURCE", source))
    monkeypatch.setenv("DPSYNTH_DATASETS", str(tmp_path))
    assert expected in problem(write(letters))


def admitted(home, texts):
    """The installation's fingerprints, once a cohort has read these texts."""
    private = Home(home).sensitive
    private.mkdir(parents=True, mode=0o700)
    prints = Fingerprints(PrivateFiles(private), private)
    key = store_key(PrivateFiles(private), private)
    reader = Reader(cohort="mine", account="mine", dataset="mine")
    assert prints.admit(reader, Prints(text_prints(texts, key))) is None
    return prints


def test_whether_a_record_was_read_is_not_told_of_a_small_table(letters, home):
    read = [f"a letter of the person number {number}" for number in range(200)]
    prints = admitted(home, read)
    assert prints.holds_most_of(read)
    assert not prints.holds_most_of(read[:99])
    others = [f"some public text of number {number}" for number in range(4000)]
    assert not prints.holds_most_of([*others, *read[:99]])
    assert not prints.holds_most_of([*others, *read[:150]])
    assert prints.holds_most_of([*others[:2000], *read[:150]])


def test_a_copy_of_records_that_a_cohort_has_read_is_refused_before_a_cell(letters, home):
    bench = DatasetBench(found_benchmark(write(letters)), "letters", home / "bench")
    assert bench.cohort.source.height == 300
    admitted(home, pl.read_csv(letters / "letters.csv")["text"].to_list())
    bench = DatasetBench(found_benchmark(write(letters)), "letters", home / "bench")
    with pytest.raises(PrivacyError, match="a cohort of this installation has read"):
        bench.run(next(places(bench.spec)))
    assert not (home / "bench").exists()


def test_a_benchmark_is_found_by_name_and_is_no_dataset(letters, home, monkeypatch):
    file = write(letters)
    monkeypatch.setenv("DPSYNTH_DATASETS", str(file.parent))
    assert found_benchmark("tiny").name == "tiny"
    found = standing(dataset_folders())
    assert not found.problems
    assert "tiny" not in {each.spec.name for each in found.usable}
    with pytest.raises(DatasetFileError, match="Declared are: tiny"):
        found_benchmark("tinny")


def test_the_file_of_the_leaderboard_holds(monkeypatch, home, tmp_path):
    monkeypatch.setenv("DPSYNTH_REAL_DATA", str(tmp_path))
    read = [found for _, found in benchmark_files([ROOT / "benchmarks" / "leaderboard"])]
    assert not any(isinstance(each, Problem) for each in read)
    found = next(each for each in read if each.name == "english_leaderboard")
    assert found.scored_rows_of("yelp_few_rows") < found.scored_rows_of("yelp")
