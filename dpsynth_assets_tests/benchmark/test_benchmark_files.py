"""Benchmark files: read strictly, kept apart from dataset files, never over private records."""

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


def test_every_seed_has_references_and_the_whole_grid(letters, home):
    spec = found_benchmark(write(letters, seeds=2))
    found = list(places(spec))
    assert len(found) == len(set(found)) == 2 * (2 + 2)
    assert [(p.line, p.epsilon, p.records) for p in found[:4]] == [
        ("public_only", None, 300),
        ("real_data", None, 300),
        ("evolved", 8.0, 300),
        ("evolved", 4.0, 150),
    ]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"methods": [{"name": "a", "method": "aug_pe"}] * 2}, "'a' twice"),
        ({"methods": [{"name": "real_data", "method": "aug_pe"}]}, "a reference's"),
        (
            {"methods": [{"name": "a", "method": "aug_pe", "datasets": ["news"]}]},
            "declared datasets",
        ),
        ({"public": {"language_model": {"kind": "smollm2"}, "nonsense": 1}}, "nonsense"),
        ({"grid": []}, "grid"),
        (
            {"grid": [{"epsilons": [1], "records": [9], "datasets": ["news"]}]},
            "'news' at an entry",
        ),
        ({"rowz": 3}, "rowz"),
    ],
)
def test_what_cannot_be_used_is_one_line_with_its_file(letters, home, changes, told):
    file = write(letters, **changes)
    message = problem(file)
    assert told in message
    assert str(file) in message


def test_records_must_be_declared_public(letters, home):
    datasets = attributes(letters)["datasets"]
    del datasets["letters"]["public"]
    assert "datasets.letters.public" in problem(write(letters, datasets=datasets))
    datasets["letters"]["public"] = False
    assert "datasets.letters.public" in problem(write(letters, datasets=datasets))


@pytest.mark.parametrize("how", ["file", "folder", "glob", "link", "hard link"])
def test_the_source_of_a_private_dataset_is_refused(letters, home, tmp_path, monkeypatch, how):
    kept = tmp_path / "kept"
    kept.mkdir()
    real = kept / "letters.csv"
    real.write_bytes((letters / "letters.csv").read_bytes())
    named = tmp_path / "named.csv"
    {
        "link": lambda: named.symlink_to(real),
        "hard link": lambda: named.hardlink_to(real),
    }.get(how, lambda: None)()
    source = {"folder": kept, "glob": kept / "*.csv"}.get(how, real)
    written(tmp_path / "mine.yaml", FIELDS | {"name": "mine", "source": {"path": str(source)}})
    monkeypatch.setenv("DPSYNTH_DATASETS", str(tmp_path))
    datasets = attributes(letters)["datasets"]
    datasets["letters"]["path"] = str(named if named.exists() else real)
    message = problem(write(letters, datasets=datasets))
    assert "a file of the private dataset 'mine'" in message
    datasets["letters"]["path"] = str(letters / "letters.csv")
    datasets["letters"]["documents"] = str(real)
    assert "datasets.letters.documents" in problem(write(letters, datasets=datasets))


@pytest.mark.parametrize(
    ("attributes_of_it", "expected"),
    [
        ({"name": "mine", "source": {"path": "SOURCE"}, "ownerz": ["x"]}, "dataset 'mine'"),
        (
            {"name": "mine", "source": {"path": "{{ env.DPSYNTH_DATA_NOT_SET }}/x.csv"}},
            "cannot be read",
        ),
        ({"name": "mine", "source": "x"}, "cannot be read"),
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


def admit(prints, private, texts):
    key = store_key(PrivateFiles(private), private)
    reader = Reader(cohort="mine", account="mine", dataset="mine")
    assert prints.admit(reader, Prints(text_prints(texts, key))) is None


def test_whether_a_record_was_read_is_not_told_of_a_small_table(letters, home):
    private = Home(home).sensitive
    private.mkdir(parents=True, mode=0o700)
    prints = Fingerprints(PrivateFiles(private), private)
    read = [f"a letter of the person number {number}" for number in range(200)]
    admit(prints, private, read)
    assert prints.holds_most_of(read)
    assert not prints.holds_most_of(read[:99])
    others = [f"some public text of number {number}" for number in range(4000)]
    assert not prints.holds_most_of([*others, *read[:99]])
    assert not prints.holds_most_of([*others, *read[:150]])
    assert prints.holds_most_of([*others[:2000], *read[:150]])


def test_a_copy_of_records_that_a_cohort_has_read_is_refused_before_a_cell(letters, home):
    bench = DatasetBench(found_benchmark(write(letters)), "letters", home / "bench")
    assert bench.cohort.source.height == 300
    private = Home(home).sensitive
    private.mkdir(parents=True, mode=0o700)
    prints = Fingerprints(PrivateFiles(private), private)
    texts = pl.read_csv(letters / "letters.csv")["text"].to_list()
    admit(prints, private, texts)
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
    few = {"yelp_few_rows", "ag_news_few_rows"}
    assert set(found.datasets) == {"yelp", "ag_news", "movies"} | few
    for name in few:
        assert found.scored_rows_of(name) < found.scored_rows_of("ag_news")


def test_a_line_may_have_budgets_of_its_own(letters):
    methods = [
        {"name": "evolved", "method": "aug_pe"},
        {
            "name": "few",
            "method": "aug_pe",
            "grid": [{"epsilons": [2.0], "records": [100]}],
        },
    ]
    grid = [{"epsilons": [8.0, 4.0], "records": [300]}]
    spec = found_benchmark(write(letters, methods=methods, grid=grid))
    assert spec.sizes == [(8.0, 300), (4.0, 300), (2.0, 100)]
    made = [
        (place.line, place.epsilon, place.records)
        for place in places(spec)
        if place.epsilon is not None
    ]
    assert made == [("evolved", 8.0, 300), ("evolved", 4.0, 300), ("few", 2.0, 100)]


def test_an_entry_of_the_grid_may_have_runs_and_datasets_of_its_own(letters):
    own = attributes(letters)["datasets"]["letters"]
    grid = [
        {"epsilons": [8.0], "records": [300], "datasets": ["letters"], "seeds": 2},
        {"epsilons": [8.0], "records": [300]},
        {"epsilons": [4.0], "records": [300], "datasets": ["letters"]},
    ]
    spec = found_benchmark(write(letters, datasets={"letters": own, "notes": own}, grid=grid))
    made = [
        (place.seed, place.dataset, place.epsilon)
        for place in places(spec)
        if place.line == "evolved"
    ]
    assert made == [
        (0, "letters", 8.0),
        (0, "notes", 8.0),
        (0, "letters", 4.0),
        (1, "letters", 8.0),
    ]
    assert {place.seed for place in places(spec) if place.epsilon is None} == {0}


def test_a_line_is_none_where_it_has_no_cell(letters):
    own = attributes(letters)["datasets"]["letters"]
    grid = [{"epsilons": [8.0], "records": [300], "datasets": ["letters"]}]
    spec = found_benchmark(write(letters, datasets={"letters": own, "notes": own}, grid=grid))
    assert {place.dataset for place in places(spec) if place.line == "evolved"} == {"letters"}
