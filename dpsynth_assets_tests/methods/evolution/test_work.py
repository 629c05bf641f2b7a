"""What is counted beforehand is what writer and embedder are asked for when the rounds run."""

import pytest

from dpsynth_assets.methods.base import room_of
from dpsynth_assets.methods.evolution.method import STAGE
from dpsynth_assets.methods.evolution.population import read_generations
from dpsynth_assets.methods.evolution.private_evolution import AugPe
from dpsynth_assets.methods.inputs import Released
from dpsynth_assets.methods.work import PublicSizes, Work
from dpsynth_assets_tests.checkpoint_folders import CheckpointFolders
from dpsynth_assets_tests.methods.cohorts import WordEmbedder
from dpsynth_assets_tests.methods.evolution.conftest import (
    WordApi,
    make_config,
    make_private,
    make_public,
    make_terms,
)

TOKENS = 16
SIZES = PublicSizes(
    text_tokens=TOKENS, documents=100, records=60, label_texts=("day", "night"), prompts=None,
    tokens_of=lambda words: len(words.split()),
)  # fmt: skip


class Counting(WordApi):
    """Counts tokens as if every text had as many, of which a degree is written anew."""

    written = 0.0

    def random(self, labels, **options):
        self.written += TOKENS * len(labels)
        return super().random(labels, **options)

    def vary(self, texts, labels, *, degree, **options):
        self.written += TOKENS * degree * len(texts)
        return super().vary(texts, labels, degree=degree, **options)


@pytest.mark.parametrize("changes", [{}, {"iterations": 1}, {"variations": 4}, {"lookahead": 2}])
def test_counted_work_is_what_writer_and_embedder_do(changes, tmp_path, monkeypatch):
    api, embedded = Counting(), []
    monkeypatch.setattr("dpsynth_assets.methods.evolution.method.open_api", lambda *_: api)
    monkeypatch.setattr(
        "dpsynth_assets.methods.rejection_sampling.WRITTEN_AGAIN", 0.0
    )  # All are kept here.
    embed = WordEmbedder.embed

    def counted(self, texts, *rest, **options):
        embedded.extend(texts)
        return embed(self, texts, *rest, **options)

    config = make_config(**changes, max_new_tokens=TOKENS)
    method = AugPe(config, make_terms())
    plan, private, public = method.plan(2.0), make_private(), make_public()
    monkeypatch.setattr(WordEmbedder, "embed", counted)
    made = plan.stage(STAGE).release(
        private, public, CheckpointFolders(tmp_path / "own"), lambda *_: None
    )
    work = plan.stage(STAGE).work(plan, SIZES)
    assert work.written == pytest.approx(api.written, rel=0.02)
    assert work.embedded == TOKENS * len(embedded)
    api.written = 0.0
    folder = Released(reservation="r", facts=made.value.facts, folder=made.value.files)
    method.writing().write(make_public(released={STAGE: folder}), config.rows, lambda *_: None)
    rows = method.writing().work(plan, SIZES)
    assert rows.written == pytest.approx(api.written, rel=0.02)


def test_an_engine_is_shown_whole_texts_and_the_model_their_beginnings():
    config = make_config(max_new_tokens=TOKENS)
    method = AugPe(config, make_terms())
    begun = method.writing().work(method.plan(2.0), SIZES)
    message = {"role": "user", "content": "Write of {sample}"}
    prompt = {"message_template": [message], "replacement_rules": []}
    shown = AugPe(
        make_config(
            max_new_tokens=TOKENS, api="engine", random_prompt=prompt, variation_prompt=prompt
        ),
        make_terms(),
    ).rows_work(method.plan(2.0), SIZES)
    assert begun.read < shown.read
    assert begun.written < shown.written
    assert Work() + begun == begun


# Room that is asked for before an evolution holds every candidate of every round.


def test_candidates_of_all_rounds_fit_into_the_room_of_the_plan(tmp_path, api):
    method = AugPe(make_config(population=40), make_terms())
    stage = method.plan(2.0).stage(STAGE)
    room = room_of(method, stage, make_public())
    release = stage.release(
        make_private(), make_public(), CheckpointFolders(tmp_path), lambda *_: None
    )
    files = [file for file in release.value.files.rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) <= room.release
    rows = read_generations(release.value.files).height
    assert rows * method.config.max_new_tokens * 4 < room.release < rows * (1 << 16)
    assert room.kept == room.release
