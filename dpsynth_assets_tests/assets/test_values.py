"""Values between assets: the one that the event log names is read, and no other."""

import dagster as dg
import polars as pl
import pytest

from dpsynth_assets import paths
from dpsynth_assets.orchestration.resources import stores
from dpsynth_assets.orchestration.resources.stores import ArtifactIOManager
from dpsynth_assets_tests.assets.declared_cases import failure

FIRST, OTHER = pl.DataFrame({"text": ["first"]}), pl.DataFrame({"text": ["forged"]})


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(stores, "_SECONDS_BETWEEN", 0.0)
    return tmp_path / "home"


@pytest.fixture
def instance():
    with dg.DagsterInstance.ephemeral() as kept:
        yield kept


def stored(value, instance):
    """Materialises `rows` with this value."""

    @dg.asset(key=["letters", "rows"])
    def rows():
        return value

    resources = {"io_manager": ArtifactIOManager()}
    return dg.materialize([rows], instance=instance, resources=resources, raise_on_error=False)


def read(instance):
    """A later run of an asset that reads `rows`; returns what it read, and the run."""
    seen = []

    @dg.asset(ins={"rows": dg.AssetIn(["letters", "rows"])})
    def reader(rows):
        seen.append(rows)

    given = dg.AssetSpec(["letters", "rows"])
    run = dg.materialize(
        [given, reader],
        selection=[reader],
        instance=instance,
        resources={"io_manager": ArtifactIOManager()},
        raise_on_error=False,
    )
    return seen, run


def path_of(home):
    (path,) = home.rglob("rows.parquet")
    return path


def test_a_value_that_was_edited_on_disk_is_refused(home, instance):
    stored(FIRST, instance)
    (seen,), _ = read(instance)
    assert seen.equals(FIRST)
    OTHER.write_parquet(path_of(home))
    seen, run = read(instance)
    assert seen == []
    assert "Materialise letters/rows again" in failure(run)
    assert "forged" not in failure(run)
    stored(FIRST, instance)
    assert len(read(instance)[0]) == 1


def test_a_value_that_cannot_be_stored_says_why(instance, monkeypatch):
    monkeypatch.setenv("DAGSTER_REDACT_USER_CODE_ERRORS", "1")
    values = paths.home().values
    values.parent.mkdir(parents=True, exist_ok=True)
    values.write_text("a file in the way")
    assert "Not a directory" in failure(stored(FIRST, instance))


def test_a_value_of_another_format_takes_the_place_of_the_old_one(home, instance):
    stored(FIRST, instance)
    table = path_of(home).read_bytes()
    stored({"rows": 3}, instance)
    assert read(instance)[0] == [{"rows": 3}]
    assert not list(home.rglob("rows.parquet"))
    (home / "artifacts/letters/rows.parquet").write_bytes(table)  # As an older version left it.
    assert read(instance)[0] == [{"rows": 3}]


def test_a_value_that_is_replaced_meanwhile_is_waited_for(home, instance, monkeypatch):
    stored(FIRST, instance)
    OTHER.write_parquet(path_of(home))
    waits = []

    def arrives(_):
        waits.append(1)
        if len(waits) == 2:
            FIRST.write_parquet(path_of(home))

    monkeypatch.setattr(stores.time, "sleep", arrives)
    (seen,), _ = read(instance)
    assert seen.equals(FIRST)


def test_without_an_event_log_what_is_stored_is_read(instance):
    with dg.DagsterInstance.ephemeral() as elsewhere:
        stored(FIRST, elsewhere)
    (seen,), _ = read(instance)
    assert seen.equals(FIRST)


def test_partitions_have_values_of_their_own_and_what_they_are_built_on_has_one(home, instance):
    """One run of a partition makes an asset without partitions, too."""
    windows = dg.DynamicPartitionsDefinition(name="windows")
    instance.add_dynamic_partitions("windows", ["2026_01", "2026_02"])
    seen = {}

    @dg.asset(key=["public", "base"])
    def base():
        return {"of": "all"}

    @dg.asset(key=["letters", "rows"], partitions_def=windows, ins={"base": dg.AssetIn(base.key)})
    def rows(context, base):
        return {"of": context.partition_key, "base": base["of"]}

    @dg.asset(partitions_def=windows, ins={"rows": dg.AssetIn(rows.key)})
    def reader(context, rows):
        seen[context.partition_key] = rows
        return rows

    def run(key, *assets):
        return dg.materialize(
            [base, rows, reader],
            selection=list(assets),
            partition_key=key,
            instance=instance,
            resources={"io_manager": ArtifactIOManager()},
            raise_on_error=False,
        )

    assert run("2026_01", base, rows, reader).success
    assert run("2026_02", rows, reader).success
    assert run("2026_01", reader).success
    instance.add_dynamic_partitions("windows", ["x/../../public"])
    assert "no '/'" in failure(run("x/../../public", reader))
    assert seen == {key: {"of": key, "base": "all"} for key in ("2026_01", "2026_02")}
    places = {str(path.relative_to(home / "artifacts")) for path in home.rglob("*.json")}
    assert {"public/base.json", "letters_2026_01/rows.json", "letters_2026_02/rows.json"} <= places
    (forged,) = home.rglob("letters_2026_02/rows.json")
    forged.write_text("{}")
    failed = run("2026_02", reader)
    assert "Materialise letters_2026_02/rows again" in failure(failed)
    assert run("2026_01", reader).success
