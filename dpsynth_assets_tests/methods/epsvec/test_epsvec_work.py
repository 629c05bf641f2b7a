"""What is counted beforehand is what an engine sees when the stages run."""

from dataclasses import dataclass

import pytest

from dpsynth_assets.methods.base import room_of
from dpsynth_assets.methods.epsvec.config import CANDIDATES, NEGATIVES, SHOTS, VECTORS
from dpsynth_assets.methods.epsvec.plan import counted_work
from dpsynth_assets.methods.work import PublicSizes, Work

TEXT_WORDS = 5


@dataclass(frozen=True, kw_only=True)
class WordSizes(PublicSizes):
    """Prompts as `WordModel` writes them."""

    def frame(self, examples):
        return 3 + examples


SIZES = WordSizes(
    text_tokens=TEXT_WORDS, documents=60, records=40, label_texts=("ex", "why"), prompts=None,
    tokens_of=lambda words: len(words.split()),
)  # fmt: skip


def seen(engine, written_before=0, read_before=0):
    """What an engine writes, and what it reads: prompts once a call, and texts behind them."""
    calls = engine.asked[written_before:]
    written = sum(TEXT_WORDS * len(prompts) for prompts, _, _ in calls)
    prompts = sum(len(each) for prompts, _, _ in calls for each in set(prompts))
    for texts, behind in zip(engine.read[read_before:], engine.behind[read_before:], strict=True):
        prompts += behind + sum(len(text) - behind for text in texts)
    return written, prompts


@pytest.mark.parametrize("kept", [None, 4])
def test_counted_work_is_what_the_engine_does(kept, cases, tmp_path, engine, monkeypatch):
    share = "dpsynth_assets.methods.rejection_sampling.WRITTEN_AGAIN"
    monkeypatch.setattr(share, 0.0)  # All are kept here.
    config = cases.config(
        layers=(2, 3), kept_shots=kept, max_document_tokens=5, max_new_tokens=5, vector_records=None
    )
    plan, public = cases.run(
        tmp_path, config, cases.private(cases.records(40)), cases.public(engine)
    )
    method = cases.method(config)
    stages = [stage.work(plan, SIZES) for stage in plan.stages]
    counted = sum(stages, start=Work())
    written, read = seen(engine)
    assert counted.written == written
    assert counted.read == pytest.approx(read, rel=0.15 if kept else 0.06)
    calls, texts = len(engine.asked), len(engine.read)
    method.writing().write(public, config.rows, cases.silent)
    rows = method.writing().work(plan, SIZES)
    assert rows.written == seen(engine, calls, texts)[0]
    assert rows.read == pytest.approx(seen(engine, calls, texts)[1], rel=0.35 if kept else 0.05)


def work_of(cases, config, step):
    return counted_work(config, cases.terms(), step, cases.method(config).plan(8.0), SIZES)


def test_what_is_left_out_costs_nothing(cases):
    config = cases.config(candidate_source="public_corpus", clip_documents=10)
    assert work_of(cases, config, CANDIDATES) == Work()
    assert work_of(cases, config, SHOTS).embedded > 0
    bounded = work_of(cases, cases.config(), NEGATIVES)
    assert work_of(cases, config, NEGATIVES).read < bounded.read


def test_records_that_are_drawn_are_read_and_no_others(cases):
    whole = work_of(cases, cases.config(), VECTORS)
    assert work_of(cases, cases.config(vector_records=10), VECTORS).read < 0.4 * whole.read


# Room that is asked for before vectors are charged holds the vectors.

HEADS = 4 << 10
"""The heads of files."""


def test_vectors_fit_into_the_room_of_their_stage(cases, tmp_path, engine):
    engine.width, config = 512, cases.config(layers=(1, 2), negatives=1)
    private, public = cases.private(cases.records(40)), cases.public(engine)
    plan, public = cases.run(tmp_path, config, private, public)
    room = room_of(cases.method(config), plan.stage(VECTORS), public)
    taken = sum(file.stat().st_size for file in public.released[VECTORS].folder.iterdir())
    assert 2 * HEADS < taken <= room.release + HEADS
    assert room.corpus > 0
    assert room_of(cases.method(config), plan.stage(SHOTS), public).release == 0
