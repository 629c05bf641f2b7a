"""Aug-PE through the graph: a killed population, one charge, rounds that are shown, free rows."""

import json
import shutil

import dagster as dg
import polars as pl
import pytest

from dpsynth_assets.defs.resources import resources
from dpsynth_assets.methods.evolution import aug_pe
from dpsynth_assets.methods.planning import plan_dataset
from dpsynth_assets.orchestration.assets.method_plots import evolution_plot_definitions
from dpsynth_assets.orchestration.assets.public import public_definitions
from dpsynth_assets.orchestration.components.cohort import declared_definitions
from dpsynth_assets.orchestration.lineage import verify_privacy_lineage
from dpsynth_assets.paths import home
from dpsynth_assets.privacy.ledger import Ledger
from dpsynth_assets.report.card_check import corpus_problems
from dpsynth_assets_tests.end_to_end.conftest import (
    CANARY,
    PUBLIC,
    House,
    installation_in,
    private_spec,
    public_spec,
)

SETTINGS = {
    "iterations": 3,
    "population": 8,
    "variations": 3,
    "max_new_tokens": 24,
    "rows": 30,
}
POPULATION = 'key:"diary/aug_pe/population"'
AUDITS = 'key:"diary/audit/mechanism_audits"'  # Other tests run them; they take half a minute.


def spec_of(folder, name="diary", **settings):
    return private_spec(
        folder,
        name=name,
        budget={"epsilon": 8.0, "delta": 1e-5, "accountant": "tight"},
        public_facts={"labels": {"label": ["billing", "delivery"]}},
        cluster_histogram=None,
        methods=[{"method": "aug_pe", "settings": SETTINGS | settings}],
        evaluation={"canaries": str(folder / "canaries.txt"), "rows": 30, "references": False},
        schedule=None,
    )


class Dying(aug_pe.PrivateVotes):
    """Votes that die in the third round, before anything of it is stored."""

    def __call__(self, rounds, population, embeddings):
        if rounds == 2:
            raise RuntimeError("killed")
        return super().__call__(rounds, population, embeddings)


def stored_generations():
    (path,) = home().sensitive.glob("diary/passes/*/*/generations.parquet")
    return pl.read_parquet(path)


@pytest.fixture(scope="module")
def killed_and_finished(tmp_path_factory, tiny_base):
    """A population that dies after two rounds, what was stored of it, and then a whole run."""
    folder = tmp_path_factory.mktemp("evolution") / "copy"
    shutil.copytree(tiny_base, folder)
    spec = spec_of(folder)
    with installation_in(folder) as instance:
        definitions = dg.Definitions.merge(
            public_definitions(public_spec(folder)), with_rounds(spec), resources()
        )
        unfinished = House(folder, spec, definitions, instance)
        with pytest.MonkeyPatch.context() as dying:
            dying.setattr(aug_pe, "PrivateVotes", Dying)
            assert not unfinished.run(f"+{POPULATION} and not {PUBLIC}").success
        stored = stored_generations()
        result = unfinished.run(f'key:"diary/*" and not {AUDITS}')
        yield House(folder, spec, definitions, instance, result), stored


def with_rounds(spec):
    """A cohort with the pictures of its rounds, whoever adds them."""
    cohort = declared_definitions(spec)
    keys = {key for asset in cohort.assets or () for key in asset.keys}
    if dg.AssetKey(["diary", "aug_pe", "rounds"]) in keys:
        return cohort
    return dg.Definitions.merge(cohort, evolution_plot_definitions(spec, plan_dataset(spec)))


@pytest.fixture
def house(killed_and_finished):
    return killed_and_finished[0]


def ledger():
    return Ledger(home().ledger_url)


def released_generations():
    entry = next(e for e in ledger().entries() if e.asset == "diary/aug_pe/population")
    folder = home().artifacts / "releases" / entry.reservation / "files"
    return pl.read_parquet(folder / "generations.parquet")


def test_the_whole_path_spends_its_budget_and_no_more(house):
    assert house.result.success
    assert 0.99 * 8.0 < ledger().spend("diary").epsilon <= 8.0
    rows = pl.read_parquet(home().released / "diary" / "aug_pe" / "data")
    assert rows.height == 30
    assert set(rows["label"].unique()) <= {"billing", "delivery"}


def test_a_killed_population_goes_on_with_the_same_rounds_under_one_charge(killed_and_finished):
    house, stored = killed_and_finished
    assert house.result.success
    assert stored["iteration"].unique().sort().to_list() == [1, 2]
    released = released_generations()
    assert released["iteration"].unique().sort().to_list() == [1, 2, 3]
    assert released.filter(pl.col("iteration") <= 2).equals(stored)
    charges = [entry.asset for entry in ledger().entries() if entry.kind == "reserve"]
    assert charges.count("diary/aug_pe/population") == 1


def test_nothing_of_an_unfinished_run_is_left_behind(house):
    assert not list(home().sensitive.glob("diary/passes/*"))


def test_the_lineage_holds(house):
    verify_privacy_lineage(house.definitions)


def test_every_round_is_described_by_released_and_public_values(house):
    shown = house.metadata("diary", "aug_pe", "rounds")
    assert shown["dpsynth/rounds"].count("\n| ") == 3
    pictures = [name for name in shown if name.startswith("dpsynth/plot_")]
    assert len(pictures) == 5
    assert "dpsynth/plot_frechet_distance" in pictures
    assert all(shown[name].startswith("![") for name in pictures)


def test_metadata_and_card_hold_no_private_word(house):
    released = home().released / "diary" / "aug_pe"
    assert corpus_problems(released, ledger().entries()) == []
    shown = json.dumps(
        [house.metadata("diary", "aug_pe", name) for name in ("population", "rounds")], default=str
    )
    assert CANARY not in shown
    assert "upset that" not in shown
