"""Every method through the Runner alone: charged once, then found for nothing.

Records lie in the sensitive store, as assets leave them; nothing here starts Dagster.
"""

from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import polars as pl
import pytest

from dpsynth_assets import PublicBase
from dpsynth_assets.method_run import InOrder
from dpsynth_assets.methods.planning import plan_dataset
from dpsynth_assets.methods.registry import REGISTRY
from dpsynth_assets.paths import home
from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.privacy.events import is_post_processing
from dpsynth_assets.privacy.ledger import Ledger
from dpsynth_assets.releases.store import StoredReleases
from dpsynth_assets.report.label import corpus_label
from dpsynth_assets.run.records import StoreRecords
from dpsynth_assets.run.runner import Runner
from dpsynth_assets.sensitive import part_tasks, store as store_module, stored_parts
from dpsynth_assets.sensitive.read_source import embed_records, store_records
from dpsynth_assets.sensitive.store import StoredRecords
from dpsynth_assets.workers import LocalWorkers
from dpsynth_assets_tests.security.leak_planting import (
    BASE,
    plant,
    private_cohort,
    public_base,
    rehearsed,
    secret_cohort,
)

PASSES = {"batches_per_label": 2, "max_batches": 4, "batches_per_forward": 1}
"""Four passes of one batch each."""
CORPUS = "mean_uniform/candidate_corpus"
QUIET = lambda _share, _message: None  # noqa: E731


class Unread(StoreRecords):
    """Records that nobody may read."""

    def opened(self, stage, reservation):
        """Fails the test."""
        raise AssertionError("private records were read")


@dataclass
class House:
    """A cohort of methods, whose parts are released as they are asked for."""

    run: InOrder

    @property
    def runner(self):
        return self.run.runner

    def part(self, method):
        """The plan of a method, after all that it builds on was released."""
        plan = self.runner.plan
        (wanted,) = [each for each in plan.methods if each.method.name == method]
        for part in (*plan.shared, *map(plan.method, wanted.method.corpora)):
            self.run.release(part)
        return wanted

    def again(self, part, **changes):
        """Releases a part once more, by a Runner with other fields."""
        before = dict(self.run.releases)
        return InOrder(replace(self.runner, **changes), self.run.values, before).release(part)


def house_of(spec: Any, public: PublicBase, parts: int) -> House:
    """Reads and embeds the records of a cohort, and plans it."""
    spec = spec.model_copy(update={"parts": parts})
    ledger, store = Ledger(home().ledger_url), StoredRecords(home().sensitive)
    store_records(spec, store, LocalWorkers())
    manifest = public.values(["text_embedder"])["text_embedder"]
    embedder = public.models.text_embedder(manifest)
    embed_records(spec, store, manifest, embedder, LocalWorkers(), QUIET)
    runner = Runner(
        plan=plan_dataset(spec, public.spec),
        ledger=ledger,
        store=StoredReleases(home().releases),
        models=public.models,
        release_name="1",
        records=StoreRecords(
            spec=spec, store=store, ledger=ledger, workers=None if parts == 1 else LocalWorkers
        ),
    )
    return House(InOrder(runner, public.values))


@pytest.fixture(scope="module", params=[1, 3])
def parts(request):
    return request.param


@pytest.fixture(scope="module")
def houses(tmp_path_factory, parts):
    """A cohort of all methods that protect records, and one of secrets."""
    folder = tmp_path_factory.mktemp("runner")
    planted = plant(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DPSYNTH_HOME", str(folder / "home"))
        patch.delenv("DPSYNTH_LEDGER_URL", raising=False)
        home()
        spec = public_base(planted)
        fields = spec.model_dump(include={"language_model", "conditional_generator", "clusters"})
        documents = pl.read_ndjson(folder / "public.jsonl")
        public = PublicBase(documents, name=BASE, **fields)
        settings = rehearsed()
        settings["mean_uniform"] = settings["mean_uniform"] | PASSES
        methods = [{"method": name, "settings": own} for name, own in settings.items()]
        cohorts = private_cohort(planted, methods=methods), secret_cohort(planted)
        made = [house_of(each, public, parts) for each in cohorts]
        yield {each.method.name: house for house in made for each in house.runner.plan.methods}


@pytest.mark.parametrize("name", REGISTRY)
def test_a_method_is_charged_once_and_found_again_for_nothing(houses, name):
    house = houses[name]
    part = house.part(name)
    made = house.run.release(part)
    entries = house.runner.ledger.entries()
    charges = [each for each in entries if each.kind == "reserve" and f"/{name}/" in each.asset]
    assert len(charges) == len(made)
    priced = [each for each in charges if each.event is not None]
    paid = {each.asset for each in priced if not is_post_processing(each.event)}
    planned = {each.asset for each in house.runner.plan.releases}
    assert paid == {asset for asset in planned if f"/{name}/" in asset}
    rows = made[-1].rows
    assert (rows is not None and rows.height > 0) == part.writes_corpus
    label = corpus_label(entries, made[-1].reservation.id)
    assert label["guarantee"]["type"] == part.plan.guarantee

    again = house.again(part, records=Unread(**vars(house.runner.records)))
    assert all(each.reservation.reused for each in again)
    assert [each.digest for each in again] == [each.digest for each in made]
    assert house.runner.ledger.entries() == entries


def test_public_stages_and_rows_ask_for_no_records(houses):
    house = houses["epsvec"]
    part = house.part("epsvec")
    house.run.release(part)
    runner, nodes = replace(house.runner, release_name="2", records=None), house.runner.plan.graph
    (first, *_) = [node for node in nodes.nodes.values() if node.stage and node.stage.public]
    assert not runner.release(first, house.run.reads(first)).reservation.reused
    rows = house.run.reads(nodes.nodes[part.corpus])
    written = runner.write(part, 3, rows)
    assert 0 < written.rows.height == 3 - written.facts["places_left_empty"]


def test_vectors_of_a_cohort_in_shards_never_read_source_records_together(
    houses, parts, monkeypatch
):
    if parts == 1:
        pytest.skip("one shard is all records")
    part = houses["epsvec"].part("epsvec")
    monkeypatch.setattr(store_module, "read_whole", lambda *_, **__: pytest.fail("read together"))
    made = houses["epsvec"].again(part, release_name="apart")
    assert {each.reservation.reused for each in made} == {False}


@pytest.mark.parametrize("name", ["1 ", " 1", "1\u200b", "1\n"])
def test_a_name_that_looks_like_a_paid_one_is_refused(houses, name):
    with pytest.raises(PrivacyError, match="a different name is a different release"):
        replace(houses["ctcl"].runner, release_name=name)


@pytest.mark.parametrize("task", ["Count", "NoteRead", "DrawKept"])
def test_a_worker_that_fails_is_withheld_and_its_charge_is_resumed(
    houses, parts, task, monkeypatch
):
    """With the passes that were kept, of which `test_split_passes` tells."""
    if parts == 1:
        pytest.skip("one shard has no workers")
    draws = task == "DrawKept"
    house = houses["mean_uniform" if draws else "aug_pe"]
    part, ledger = house.part("mean_uniform" if draws else "aug_pe"), house.runner.ledger
    kind = getattr(stored_parts if draws else part_tasks, task)
    works, began = kind.__call__, []

    def fails_at_the_third(self, place):
        began.append(place)
        if len(began) == 3:
            raise ValueError("Ottoline's letter")
        return works(self, place)

    with monkeypatch.context() as fault:
        fault.setattr(kind, "__call__", fails_at_the_third)
        with pytest.raises(PrivacyError, match="in a worker failed with ValueError") as caught:
            house.again(part, release_name=task)
    assert "Ottoline" not in str(caught.value)
    charged, paid = len(ledger.entries()), ledger.entries()[-1].reservation
    made = house.again(part, release_name=task)
    reserved = [e for e in ledger.entries()[charged:] if e.kind == "reserve"]
    assert len(reserved) == len(made) - 1, "the charge of the stage that failed is used"
    name, store = house.runner.plan.spec.name, house.runner.records.store
    reads = [read.reservation for read in store.contributions(name).reads()]
    assert reads.count(paid) == 2 * parts - (task == "NoteRead"), "both runs note what they read"


def released_with(house, release_name, records, **changed):
    """Releases the only stage of `mean_uniform` with other parts, under a release of its own."""
    part, runner = house.part("mean_uniform"), house.runner
    (node,) = [each for each in runner.plan.graph.nodes.values() if each.part is part]
    edited = replace(node, stage=replace(node.stage, **changed))
    runner = replace(runner, release_name=release_name, records=records)
    return runner.release(edited, house.run.reads(node))


def test_what_cannot_be_drawn_costs_nothing_and_says_what_is_wrong(houses):
    house = houses["mean_uniform"]
    house.part("mean_uniform")
    unread, entries = Unread(**vars(house.runner.records)), house.runner.ledger.entries()

    def refuses(public):
        raise ValueError("Expected prompts within 8 tokens, got 9.")

    with pytest.raises(PrivacyError) as refused:
        released_with(house, "checked", unread, check=refuses)
    assert str(refused.value).endswith(f"/{CORPUS}: Expected prompts within 8 tokens, got 9.")
    assert house.runner.ledger.entries() == entries


def test_a_failure_is_withheld_and_its_charge_is_resumed(houses):
    house = houses["mean_uniform"]

    def fails(run):
        raise RuntimeError("a private text")

    with pytest.raises(PrivacyError) as caught:
        released_with(house, "failed", house.runner.records, draws=fails)
    said = str(caught.value)
    asset = f"{house.runner.plan.spec.name}/{CORPUS}"
    assert said.startswith(f"{asset} failed with RuntimeError. Its message is withheld")
    assert said.endswith("The charge remains: run again to resume it.")
    assert caught.value.__cause__ is None
    paid = len(house.runner.ledger.entries())
    (made,) = house.again(house.part("mean_uniform"), release_name="failed")
    assert not made.reservation.reused
    assert len(house.runner.ledger.entries()) == paid + 1  # The commit alone.


def test_embeddings_made_anew_since_the_request_are_refused_before_the_charge(houses, monkeypatch):
    house, made = houses["aug_pe"], count()
    part, entries = house.part("aug_pe"), house.runner.ledger.entries()
    monkeypatch.setattr(
        StoreRecords, "rests_on", lambda *_: {"embeddings": {"arithmetic": str(next(made))}}
    )
    with pytest.raises(PrivacyError, match=r"embeddings of .* as its charge describes them"):
        house.again(part, release_name="embedded anew")
    assert house.runner.ledger.entries() == entries
