"""Embeddings, what made them, and the records that they are of: whatever is killed or replaced."""

import base64
import threading
from functools import partial
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
from upath import UPath

from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.sensitive import store as store_module
from dpsynth_assets.sensitive.part_tasks import embed_part
from dpsynth_assets.sensitive.private_files import PrivateFiles, files_below
from dpsynth_assets.sensitive.purging import PurgeRule, purge
from dpsynth_assets.sensitive.read_source import embed_records
from dpsynth_assets.sensitive.record_parts import SPLITS, write_canonical
from dpsynth_assets.sensitive.store import StoredRecords
from dpsynth_assets.workers import Here, LocalWorkers
from dpsynth_assets_tests.stored import paid_by, read_paid


class Toy:
    """An embedder whose vectors say which it is."""

    def __init__(self, value, during=lambda: None):
        self.made_by, self._value, self._during = {"arithmetic": str(value)}, value, during

    def embed(self, texts, progress=None):
        self._during()
        return np.full((len(texts), 2), self._value, np.float32)


def put(store, text, parts=1):
    """Makes records of such texts those of the dataset."""
    kept = store.parts("letters")
    places = kept.begin(parts)
    for number, place in enumerate(places):
        names = [f"{number}", f"{number}b"]
        said = {"record_id": names, "unit_id": names, "text": [text, text], "label": ["", ""]}
        for split in SPLITS:
            write_canonical(place, split, pl.DataFrame(said))
    kept.keep(places)
    return store.parts("letters").places


def embedded(store, embedder, parts=1):
    spec = SimpleNamespace(name="letters", parts=parts)
    embed_records(spec, store, {}, embedder, LocalWorkers(), lambda *_: None)


@pytest.mark.parametrize("parts", [1, 2])
def test_a_charge_states_the_make_of_the_array_wherever_embedding_is_killed(
    store, monkeypatch, parts
):
    left = [0]

    def step(*_):
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt

    write = PrivateFiles.write
    monkeypatch.setattr(
        PrivateFiles, "write", lambda *given, **way: (step(), write(*given, **way), step())
    )
    seen = set()
    for limit in range(1, 14 * parts + 2):
        put(store, str(limit), parts)
        left[0] = 0
        embedded(store, Toy(0.0), parts)
        left[0] = limit
        try:
            embedded(store, Toy(1.0, step), parts)
            assert limit == 14 * parts + 1
        except KeyboardInterrupt:
            pass
        try:
            store.require_records("letters", with_embeddings=True)
            store.require_stated_embeddings("letters")
        except PrivacyError:
            seen.add("refused")
            continue
        (made,) = np.unique(
            store.read_internal("letters", "source", with_embeddings=True).vectors
        ).tolist()
        assert store.embeddings_rest_on("letters") == {"embeddings": {"arithmetic": str(made)}}
        seen.add(made)
    assert seen == {0.0, 1.0, "refused"}


def test_a_slow_run_that_is_killed_leaves_no_version_of_another_beside_its_array(
    store, monkeypatch
):
    (place,) = put(store, "one")
    task = partial(embed_part, {}, Here((Toy(1.0), None)))
    write = PrivateFiles.write_array

    def killed(*given):
        write(*given)
        raise KeyboardInterrupt

    slow = Toy(0.0, lambda: (task(place), monkeypatch.setattr(PrivateFiles, "write_array", killed)))
    with pytest.raises(KeyboardInterrupt):
        embed_part({}, Here((slow, None)), place)
    with pytest.raises(PrivacyError, match=r"source_embeddings\.version"):
        store.require_records("letters", with_embeddings=True)
    monkeypatch.setattr(PrivateFiles, "write_array", write)
    task(place)
    assert np.unique(
        store.read_internal("letters", "source", with_embeddings=True).vectors
    ).tolist() == [1.0]


def test_one_process_at_a_time_embeds_a_cohort(store):
    put(store, "one")
    order = []
    other = threading.Thread(target=embedded, args=(store, Toy(1.0, lambda: order.append(2))))

    def first():
        if not order:
            other.start()
        other.join(0.3)
        order.append(1)

    embedded(store, Toy(0.0, first))
    other.join(60)
    assert order == [1, 1, 2, 2]


@pytest.mark.parametrize("place", ["disk", "bucket"])
@pytest.mark.parametrize("taken", ["replaced", "purged"])
@pytest.mark.parametrize("when", ["while texts are embedded", "while the array is written"])
def test_records_that_go_while_they_are_embedded_do_not_come_back(
    tmp_path, store, monkeypatch, place, taken, when
):
    if place == "bucket":
        monkeypatch.setenv("DPSYNTH_SENSITIVE_KEY", base64.b64encode(b"k" * 32).decode())
        store = StoredRecords(UPath(f"memory://{tmp_path.name}"))
    (part,) = put(store, "one")
    write, done = PrivateFiles.write_array, []

    def take():
        if not done:
            done.append(taken)
            if taken == "purged":
                purge(store, PurgeRule(dataset="letters"), lambda _: False)
            else:
                put(store, "two")

    monkeypatch.setattr(
        PrivateFiles,
        "write_array",
        lambda *given: (write(*given), "array" in when and take()),
    )
    during = take if "texts" in when else lambda: None
    with pytest.raises((PrivacyError, FileNotFoundError)):
        embed_part({}, Here((Toy(0.0, during), None)), part)
    files = files_below(store.base)
    assert not files.is_folder(part)
    assert not files.exists(part / "source_embeddings.npy")


def test_a_release_refuses_embeddings_that_are_made_anew_while_it_reads_them(store, monkeypatch):
    put(store, "one")
    store.read_records.note_read("letters", "version 1", "declared", "rows")
    embedded(store, Toy(0.0))
    charged = store.pay_for_records("letters", with_embeddings=True)
    store.passes("letters", paid_by()).begin({"records": charged})
    assert read_paid(store, "letters", with_embeddings=True).embeddings.max() == 0.0
    whole = store_module.read_whole

    def read_late(*given, **named):
        embedded(store, Toy(1.0))
        return whole(*given, **named)

    monkeypatch.setattr(store_module, "read_whole", read_late)
    with pytest.raises(PrivacyError, match=r"as they were charged for, got others"):
        read_paid(store, "letters", with_embeddings=True)
