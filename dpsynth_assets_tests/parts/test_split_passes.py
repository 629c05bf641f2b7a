"""Passes over parts: the inputs of each are those of the whole, each is drawn and kept once."""

import base64
import stat
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
import pytest

from dpsynth_assets.methods.inputs import PrivateInputs, PublicInputs
from dpsynth_assets.methods.private_prediction import passes as split_passes
from dpsynth_assets.methods.private_prediction.split_batches import split_batches
from dpsynth_assets.methods.registry import get_method
from dpsynth_assets.orchestration.resources.stores import SensitiveStore
from dpsynth_assets.privacy.guarantees import NeighboringRelation
from dpsynth_assets.sensitive import stored_parts
from dpsynth_assets.sensitive.private_files import PrivateFiles
from dpsynth_assets.sensitive.purging import PurgeRule, purge
from dpsynth_assets.sensitive.record_parts import read_whole, write_canonical
from dpsynth_assets.sensitive.sealing import HEADER
from dpsynth_assets.sensitive.stored_parts import StoredParts
from dpsynth_assets.workers import LocalWorkers, WorkerError
from dpsynth_assets_tests.methods.private_prediction.conftest import (
    ALPHABET,
    HISTOGRAM,
    CharacterModel,
    config_of,
    make_centers,
    make_terms,
)
from dpsynth_assets_tests.parts.conftest import Watching
from dpsynth_assets_tests.parts.shown_passes import Shows, shown
from dpsynth_assets_tests.stored import write_array

PARTS, ROWS = 5, 150
SETTINGS = {"expected_batch_size": 4, "batches_per_forward": 2}


@dataclass(frozen=True)
class Opens:
    """Stands for a base of public models: opens the small one in whichever process."""

    def __call__(self):
        return PublicInputs(language_model=CharacterModel(), salt="public salt", seed=1)


def public_inputs():
    """What the driver reads; `Opens` gives workers the model alone."""
    return replace(
        Opens()(),
        cluster_centers=make_centers(),
        cluster_histogram=HISTOGRAM,
        reopened=Opens(),
    )


class Reservation:
    id = "r-1"


def records(rows=ROWS):
    """Records some of which are equal, of blank text, or of a label that is not declared."""
    draw = np.random.default_rng(3)
    texts = ["".join(draw.choice(list(ALPHABET[:26]), 10)) for _ in range(rows)]
    texts[7] = texts[8] = "again and again"
    texts[10], texts[11] = " ", " "
    ids = [f"r{n:03d}" for n in draw.permutation(rows)]
    ids[8] = ids[7]
    labels = [["x", "y", "x", "z"][n % 4] for n in range(rows)]
    labels[8] = labels[7]
    return pl.DataFrame({"record_id": ids, "unit_id": ids, "text": texts, "label": labels})


def embedding_of(text):
    vector = np.random.default_rng([len(text), *text.encode()]).normal(size=5)
    return (vector / np.linalg.norm(vector)).astype(np.float32)


@pytest.fixture
def home(tmp_path):
    """A store that holds the records in parts, and the folder of an unfinished release."""
    store = SensitiveStore.at(str(tmp_path / "sensitive"))
    places = store.parts("letters").begin(PARTS)
    table = records()
    for number, place in enumerate(places):
        own = table.gather_every(PARTS, number).sort("record_id", "text")
        write_canonical(place, "source", own)
        write_canonical(place, "held_out", own.clear())
        write_array(place, "source_embeddings.npy", np.stack([*map(embedding_of, own["text"])]))
    store.parts("letters").keep(places)
    store.passes("letters", Reservation).begin()
    return store


def in_parts(store, workers):
    places = store.parts("letters").places
    release = store.folder("letters") / "passes" / Reservation.id
    return PrivateInputs(
        records=records().clear(),
        parts=StoredParts(places, workers, with_embeddings=True, release=release),
        passes=store.passes("letters", Reservation),
    )


def bound(name, **changes):
    slots = changes.get("batching") == "slots"
    terms = make_terms(
        accepts_ex_post=True,
        public_records=None,
        public_slots=slots,
        relation=NeighboringRelation.ZERO_OUT if slots else NeighboringRelation.ADD_REMOVE,
    )
    return get_method(name)(config_of(name, **(SETTINGS | changes)), terms)


def released(method, private, progress=lambda *_: None):
    plan = method.plan(6.0)
    assert plan.refusal is None
    (stage,) = plan.stages
    assert stage.draws_passes
    return stage.release(private, public_inputs(), None, progress)


PAIRS = {"examples_per_context": 2}
SLOTS = {"batching": "slots"}
CASES = [
    (1, "mean_clustered", {}),
    (1, "mean_uniform", PAIRS),
    (1, "mean_uniform", SLOTS),
    (1, "mean_clustered", SLOTS | PAIRS),
    pytest.param(4, "mean_clustered", {}, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("count", "name", "changes"), CASES, ids=str)
def test_the_inputs_of_every_pass_are_those_of_the_whole(home, count, name, changes):
    declared, public = bound(name, **changes).declared, public_inputs()
    whole = read_whole(home.parts("letters").places, "source", with_embeddings=True)
    batches = split_batches(declared, whole, public).placed(whole)
    expected = [
        {"batches": shown(batches[first : first + 2])} for first in range(0, len(batches), 2)
    ]
    assert len(expected) > 1
    assert sum(len(batch[3]) for values in expected for batch in values["batches"]) >= 3
    with LocalWorkers(count).opened() as workers:
        private = in_parts(home, workers)
        split = split_batches(declared, private, public)
        steps = split.steps(range(len(expected)), len(expected))
        drawn = private.parts.draw_passes(steps, Shows(split), range(len(expected)), memory=0)
        assert list(drawn) == list(range(len(expected)))
    assert [private.passes.load(number) for number in range(len(expected))] == expected
    assert no_inputs_left(home)


def no_inputs_left(store):
    return not [*(store.folder("letters") / "passes").rglob("*inputs-*")]


def test_the_realised_cost_is_that_of_all_passes_together(home):
    method, told = bound("median_clustered"), []
    made = released(method, in_parts(home, LocalWorkers(1)), lambda *said: told.append(said))
    passes = home.passes("letters", Reservation)
    each = [cost for n in range(3) for cost in passes.load(n)["costs"]]
    assert made.value.internal["ex_post_epsilon_by_batch"].tolist() == each
    assert made.cost.ex_post_epsilon == method.median_mechanism.realised_epsilon(np.array(each))
    assert made.cost.ex_post_epsilon > 0
    assert told[-1][0] == 1.0
    assert all("steps in progress" not in message for _, message in told)


def test_a_worker_that_dies_costs_its_own_pass_alone(home, monkeypatch):
    """Workers keep what they draw, each pass by itself: the driver has no part in it."""
    draw = split_passes.DrawPass.__call__

    def dies_at_the_fifth(self, number, tables):
        if number == 4:
            raise MemoryError
        return draw(self, number, tables)

    monkeypatch.setattr(split_passes.DrawPass, "__call__", dies_at_the_fifth)
    with pytest.raises(WorkerError, match="pass-00004 in a worker failed: out of memory"):
        released(bound("mean_clustered", batches_per_forward=1), in_parts(home, LocalWorkers(1)))
    passes = home.passes("letters", Reservation)
    assert [n for n in range(6) if passes.load(n) is not None] == [0, 1, 2, 3]
    assert no_inputs_left(home)


def test_only_missing_passes_are_sorted_and_drawn(home, monkeypatch):
    method = bound("mean_clustered")
    released(method, in_parts(home, LocalWorkers(1)))
    passes = home.passes("letters", Reservation)
    kept = [passes.load(number) for number in range(3)]
    release = home.folder("letters") / "passes" / Reservation.id
    (release / "1.json").unlink()
    sorted_into = []
    tables = stored_parts._tables

    def watched(place):
        siblings = {each.parent.name for each in place.parent.glob("*/*.parquet")}
        sorted_into.append((place.name, siblings))
        return tables(place)

    monkeypatch.setattr(stored_parts, "_tables", watched)
    released(method, in_parts(home, LocalWorkers(1)))
    assert sorted_into == [("pass-00001", {"pass-00001"})]
    assert [passes.load(0), passes.load(2)] == [kept[0], kept[2]]
    monkeypatch.setattr(stored_parts.SortRecords, "__call__", None)
    released(method, in_parts(home, LocalWorkers(1)))  # All are kept: nothing is read.


def test_nothing_private_travels(home):
    """What workers are given holds no record, and what they return is nothing at all."""
    workers = Watching()
    private = in_parts(home, workers)
    private = replace(private, parts=replace(private.parts, gpus=1))
    released(bound("mean_clustered"), private)
    assert {result for *_, result in workers.seen} == {None}
    words = [*records()["text"].str.strip_chars(), *records()["record_id"]]
    for _, content, *_ in workers.seen:
        assert not [word for word in words if word and word.encode() in content]
    steps = {(gpus, text.partition("(")[0]) for text, _, gpus, _ in workers.seen}
    assert steps == {(0, "SortRecords"), (1, "DrawKept")}


@pytest.mark.parametrize("changes", [{}, SLOTS], ids=str)
def test_the_driver_opens_no_record(home, monkeypatch, changes):
    """Its memory follows the rows that are written, whatever the number of records."""
    state = {"in_worker": False, "opened": []}

    class Marked:
        count = 1

        def map_parts(self, function, parts, *, gpus=0, memory=0):
            for part in parts:
                state["in_worker"] = True
                (result,) = LocalWorkers(1).map_parts(function, [part])
                state["in_worker"] = False
                yield result

    def watched(name):
        made = getattr(PrivateFiles, name)

        def opens(self, path):
            state["opened"].append((state["in_worker"], path.suffix))
            return made(self, path)

        monkeypatch.setattr(PrivateFiles, name, opens)

    watched("read")
    watched("read_array")
    released(bound("mean_clustered", **changes), in_parts(home, Marked()))
    by_driver = {suffix for in_worker, suffix in state["opened"] if not in_worker}
    by_workers = {suffix for in_worker, suffix in state["opened"] if in_worker}
    assert by_driver == {".json"}
    assert by_workers == {".parquet", ".digest", ".npy"}


def test_a_kept_pass_is_never_replaced(home):
    passes = home.passes("letters", Reservation)
    passes.save(3, {"drawn": [1, 2]})
    passes.save(3, {"drawn": [5, 6]})
    assert passes.load(3) == {"drawn": [1, 2]}


def test_a_pass_whose_records_were_removed_is_not_drawn_without_them(home, monkeypatch):
    made = stored_parts.DrawKept.__call__

    def purged_first(self, place):
        stored_parts._files(place).withdraw(place.parent)
        return made(self, place)

    monkeypatch.setattr(stored_parts.DrawKept, "__call__", purged_first)
    with pytest.raises(WorkerError, match="FileNotFoundError"):
        released(bound("mean_clustered"), in_parts(home, LocalWorkers(1)))
    assert home.passes("letters", Reservation).load(0) is None


def left_by_a_killed_run(store):
    inputs = store.folder("letters") / "passes" / Reservation.id / "inputs-0123456789abcdef"
    (inputs / "pass-00000").mkdir(parents=True)
    (inputs / "pass-00000" / "00000-of-00005.parquet").write_text("records")
    return inputs


def test_records_that_a_killed_run_sorted_go_with_the_next_run_a_purge_and_the_release(home):
    passes, inputs = home.passes("letters", Reservation), left_by_a_killed_run(home)
    released(bound("mean_clustered"), in_parts(home, LocalWorkers(1)))
    assert not inputs.exists()
    assert no_inputs_left(home)
    kept, inputs = passes.load(0), left_by_a_killed_run(home)
    removed = purge(home, PurgeRule(dataset="letters"), lambda _: True, dry_run=True)
    assert inputs in removed
    purge(home, PurgeRule(dataset="letters"), lambda _: True)
    assert not inputs.exists()
    assert passes.load(0) == kept, "what is paid for stays"
    inputs = left_by_a_killed_run(home)
    passes.remove()
    assert not inputs.exists()


def test_where_vllm_decodes_one_process_draws():
    from dpsynth_assets.datasets.public_spec import LanguageModelSpec

    method = bound("mean_clustered")
    model = LanguageModelSpec(kind="pretrained", model="a/b", decoder="vllm")
    in_vllm = type(method)(method.config, replace(method.terms, language_model=model))
    assert [stage.in_parts for stage in method.stages()] == [True]
    assert [stage.in_parts for stage in in_vllm.stages()] == [False]


@pytest.fixture(params=[False, True], ids=["plain", "sealed"])
def sealed(request, monkeypatch):
    monkeypatch.delenv("DPSYNTH_SENSITIVE_KEY", raising=False)
    if request.param:
        key = base64.b64encode(b"k" * 32).decode()
        monkeypatch.setenv("DPSYNTH_SENSITIVE_KEY", key)
    return request.param


def test_files_of_passes_are_for_their_owner_alone_and_sealed_where_there_is_a_key(
    sealed, home, monkeypatch
):
    modes, contents, tables = set(), [], stored_parts._tables

    def watched(place):
        paths = [place.parent, place, *place.iterdir()]
        modes.update(stat.S_IMODE(path.stat().st_mode) for path in paths)
        contents.extend(path.read_bytes() for path in paths[2:])
        return tables(place)

    monkeypatch.setattr(stored_parts, "_tables", watched)
    released(bound("mean_clustered"), in_parts(home, LocalWorkers(1)))
    assert modes == {0o600, 0o700}
    ids = [name.encode() for name in records()["record_id"]]
    found = [name for name in ids for content in contents if name in content]
    # Four letters may stand in encrypted bytes by chance, five of these names do not.
    assert (len(set(found)) >= 5) is not sealed
    assert all(content.startswith(HEADER) for content in contents) is sealed
