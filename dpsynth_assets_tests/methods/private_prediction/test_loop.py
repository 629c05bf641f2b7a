"""The loop draws what it may and no more, and packing changes nothing."""

import weakref
from functools import partial

import numpy as np
import pytest

from dpsynth_assets.methods.private_prediction.loop import (
    Draws,
    generate_documents,
)
from dpsynth_assets.privacy.batch_terms import BatchTerms
from dpsynth_assets.privacy.errors import UnaccountedReleaseError
from dpsynth_assets.privacy.guarantees import NeighboringRelation
from dpsynth_assets.privacy.token_selection import MeanTokenMechanism, PrivateTokenMeter
from dpsynth_assets_tests.methods.private_prediction.conftest import make_rules
from dpsynth_assets_tests.privacy.oracles import mean_scores_oracle

COLUMNS, END, VOCABULARY = 10, 1, 31
CLIP, SIZE = 6.0, 4


rules = partial(make_rules, tokens_per_batch=40)


def random_batches(sizes, seed=0):
    draw = np.random.default_rng(seed)
    return [
        [draw.integers(3, VOCABULARY, draw.integers(2, COLUMNS + 1)).tolist() for _ in range(n)]
        for n in sizes
    ]


def greedy_mean(logits, batch_of_row, active):
    """The most probable token under the mean of clipped logits: the mechanism without its draw."""
    tokens = []
    for batch in active:
        own = logits[batch_of_row == int(batch)].numpy()
        scores = mean_scores_oracle(own, clip_bound=CLIP, expected_batch_size=SIZE, temperature=1.0)
        tokens.append(int(scores.argmax()))
    return np.array(tokens)


class Recorder:
    """A selector that remembers every question, and answers by `answer`."""

    def __init__(self, answer=greedy_mean):
        self.answer = answer
        self.active = []
        self.rows = []
        self.tokens = {}

    def __call__(self, logits):
        tokens, active = (
            self.answer(logits.private, logits.batch_of_row, logits.active),
            logits.active,
        )
        self.active.append(active.tolist())
        self.rows.append(len(logits.private))
        for batch, token in zip(active.tolist(), tokens.tolist(), strict=True):
            self.tokens.setdefault(batch, []).append(token)
        return Draws.all_private(tokens)

    def count(self, batch):
        return len(self.tokens[batch])


def drawing(seed, end_share=0.1):
    draw = np.random.default_rng(seed)

    def answer(logits, batch_of_row, active):
        tokens = draw.integers(3, VOCABULARY, len(active))
        return np.where(draw.random(len(active)) < end_share, END, tokens)

    return answer


def by_batch(documents, batches):
    return [[(d.tokens, d.finished) for d in documents if d.batch == b] for b in range(batches)]


def test_reading_a_shared_public_prefix_once_changes_no_document(decoder, monkeypatch):
    prefix = [5, 9, 4, 17]
    batches = [[prefix + prompt[:6] for prompt in batch] for batch in random_batches([3, 0, 4])]
    base, widths = type(decoder.model.base_model), []
    forward = base.forward

    def spy(self, *args, **kwargs):
        widths.append(kwargs["input_ids"].shape[1])
        return forward(self, *args, **kwargs)

    plain = generate_documents(decoder, batches, Recorder(), rules())
    monkeypatch.setattr(base, "forward", spy)
    shared = generate_documents(decoder, batches, Recorder(), rules(), public_prefixes=[prefix])
    assert shared == plain
    assert widths[:2] == [4, COLUMNS - 4]


def test_batches_in_one_pass_write_what_they_write_alone(decoder):
    batches = random_batches([3, 6, 0, 2], seed=4)
    together = generate_documents(decoder, batches, Recorder(), rules())
    alone = [
        [(d.tokens, d.finished) for d in generate_documents(decoder, [batch], Recorder(), rules())]
        for batch in batches
    ]
    assert by_batch(together, 4) == alone


def test_a_model_that_never_ends_draws_exactly_the_budget(decoder):
    recorder = Recorder(lambda logits, rows, active: np.full(len(active), 7))
    settings = rules(max_document_tokens=1000 // 4, tokens_per_batch=33)
    documents = generate_documents(decoder, random_batches([2, 2]), recorder, settings)
    assert [recorder.count(batch) for batch in (0, 1)] == [33, 33]
    assert [(len(d.tokens), d.finished) for d in documents] == [(33, False)] * 2


@pytest.mark.parametrize("seed", range(5))
def test_no_batch_draws_more_than_its_budget_and_ends_within_the_minimum(decoder, seed):
    recorder = Recorder(drawing(seed))
    settings = rules()
    generate_documents(decoder, random_batches([2, 3, 2]), recorder, settings)
    for batch in range(3):
        left = settings.tokens_per_batch - recorder.count(batch)
        assert 0 <= left < settings.min_tokens_for_new_document


def test_every_drawn_token_is_in_a_document_or_ends_one(decoder):
    recorder = Recorder(drawing(3))
    documents = generate_documents(decoder, random_batches([2, 2]), recorder, rules())
    for batch in range(2):
        written = [t for d in documents if d.batch == batch for t in d.tokens]
        assert written == [t for t in recorder.tokens[batch] if t != END]


def test_documents_end_at_the_greatest_length(decoder):
    recorder = Recorder(lambda logits, rows, active: np.full(len(active), 7))
    documents = generate_documents(
        decoder, random_batches([1]), recorder, rules(max_document_tokens=12)
    )
    assert [len(d.tokens) for d in documents] == [12, 12, 12]
    assert all(d.finished for d in documents)


def test_an_empty_batch_generates_like_any_other(decoder):
    recorder = Recorder(drawing(1))
    generate_documents(decoder, random_batches([0, 0]), recorder, rules())
    assert recorder.count(0) > 30
    assert set(recorder.rows) == {0}


def test_finished_batches_leave_the_pass(decoder):
    def answer(logits, batch_of_row, active):
        return np.where(active == 0, 7, END)

    recorder = Recorder(answer)
    settings = rules(tokens_per_batch=48, min_tokens_for_new_document=40, max_document_tokens=44)
    generate_documents(decoder, random_batches([2, 2, 2]), recorder, settings)
    assert recorder.rows[0] == 6
    assert recorder.rows[-1] == 2


def test_no_logits_outlive_their_step(decoder, language_model):
    # The next pass would stand beside them in memory, (R, V) twice.
    alive, held = [], []

    def answer(logits, batch_of_row, active):
        held.append(weakref.ref(logits))
        return np.full(len(active), 7)

    model = language_model.model
    watch = model.register_forward_pre_hook(
        lambda *_: alive.append(sum(each() is not None for each in held))
    )
    generate_documents(decoder, random_batches([2, 2]), Recorder(answer), rules())
    watch.remove()
    assert len(alive) > 10
    assert not any(alive)


def test_a_public_pass_has_a_row_for_each_batch_and_no_more(decoder, language_model):
    seen = []
    model = language_model.model
    watch = model.register_forward_pre_hook(
        lambda _, __, inputs: seen.append(len(inputs["input_ids"])), with_kwargs=True
    )
    generate_documents(
        decoder,
        random_batches([2, 0, 2]),
        Recorder(drawing(3)),
        rules(),
        public_prompts=[[3, 4]] * 3,
    )
    watch.remove()
    assert len(seen) > 10
    assert set(seen) == {16, 3}  # private passes are filled to a fixed multiple


def test_decisions_depend_on_tokens_alone_not_on_private_contexts(decoder):
    """Two cohorts, the same tokens: the same questions in the same order."""
    asked = []
    for sizes in ([4, 4, 4], [0, 9, 1]):
        recorder = Recorder(drawing(8))
        generate_documents(decoder, random_batches(sizes, 2), recorder, rules())
        asked.append(recorder.active)
    assert asked[0] == asked[1]


def test_a_meter_smaller_than_the_budget_stops_the_loop_before_a_draw(decoder):
    mechanism = MeanTokenMechanism(
        clip_bound=CLIP,
        temperature=1.0,
        batch=BatchTerms(expected_batch_size=SIZE, relation=NeighboringRelation.ADD_REMOVE),
    )
    meter = PrivateTokenMeter(20, 2)
    with pytest.raises(UnaccountedReleaseError):
        generate_documents(
            decoder,
            random_batches([2, 2]),
            lambda logits: Draws.all_private(mechanism.select(logits, meter)),
            rules(tokens_per_batch=40, end_token_id=-1),
        )
    assert meter.spent.tolist() == [20, 20]
