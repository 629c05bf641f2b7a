"""What the loop shares with whom, and what it costs.

That it draws what it may and no more, token for token, is shown against an oracle in
`conformance/test_engine_oracle.py`.
"""

import weakref
from functools import partial

import numpy as np
import pytest
import torch

from dpsynth_assets.methods.private_prediction.loop import Draws, generate_documents
from dpsynth_assets.methods.registry import get_method
from dpsynth_assets.privacy.events import flatten
from dpsynth_assets_tests.methods.private_prediction import conftest
from dpsynth_assets_tests.methods.private_prediction.conftest import make_rules

COLUMNS, END, VOCABULARY = 10, 1, 31


rules = partial(make_rules, tokens_per_batch=40)


def random_batches(sizes, seed=0):
    draw = np.random.default_rng(seed)
    return [
        [draw.integers(3, VOCABULARY, draw.integers(2, COLUMNS + 1)).tolist() for _ in range(n)]
        for n in sizes
    ]


class Recorder:
    """A selector that remembers who was asked about how many rows, and answers by `answer`."""

    def __init__(self, answer):
        self.answer, self.active, self.rows = answer, [], []

    def __call__(self, logits):
        self.active.append(logits.active.tolist())
        self.rows.append(len(logits.private))
        return Draws.all_private(self.answer(logits.private, logits.active))


def drawing(seed):
    draw = np.random.default_rng(seed)

    def answer(logits, active):
        tokens = draw.integers(3, VOCABULARY, len(active))
        return np.where(draw.random(len(active)) < 0.1, END, tokens)

    return answer


def test_finished_batches_leave_the_pass(decoder):
    def answer(logits, active):
        return np.where(active == 0, 7, END)

    recorder = Recorder(answer)
    settings = rules(tokens_per_batch=48, min_tokens_for_new_document=40, max_document_tokens=44)
    generate_documents(decoder, random_batches([2, 2, 2]), recorder, settings)
    assert recorder.rows[0] == 6
    assert recorder.rows[-1] == 2


def test_no_logits_outlive_their_step(decoder, language_model):
    # The next pass would stand beside them in memory, (R, V) twice.
    alive, held = [], []

    def answer(logits, active):
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


# Laws of the methods that compare with public text, and of the loop's free tokens.

NAMES = ("mean_svt", "invisible_ink")
PAD = 2
config_of = partial(conftest.config_of, batches_per_label=2, batches_per_forward=3)
EPSILON = {"mean_svt": 400.0, "invisible_ink": 4.0}


def run(name, cases, model, private=None, config=None, epsilon=None):
    method = get_method(name)(config or config_of(name), cases.terms())
    plan = method.plan(epsilon or EPSILON[name])
    private = cases.private(64) if private is None else private
    return plan, cases.release(method, plan, private, cases.public(model))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("records", [0, 1, 64])
def test_every_batch_writes_whatever_it_holds(name, cases, language_model, records):
    _, release = run(name, cases, language_model, private=cases.private(records))
    assert release.value.facts["batches"] == 4
    assert release.value.rows["batch"].n_unique() == 4


@pytest.mark.parametrize(("threshold", "drawn"), [(4.0, "public_tokens"), (-2.0, "private_tokens")])
def test_a_threshold_out_of_reach_draws_one_kind_of_token_alone(
    cases, language_model, threshold, drawn
):
    config = config_of("mean_svt", svt_threshold=threshold, svt_noise_scale=1e-3)
    _, release = run("mean_svt", cases, language_model, config=config, epsilon=1e6)
    facts = release.value.facts
    assert facts[drawn] == facts["public_tokens"] + facts["private_tokens"] > 0


def test_the_break_even_share_is_where_the_two_ways_cost_the_same(cases):
    tested = get_method("mean_svt")(config_of("mean_svt"), cases.terms()).plan(400.0)
    share = tested.parameters["break_even_private_fraction"]
    draw, test = (float(atom.rho) / atom.count for atom in flatten(tested.event))
    length = 1000  # tokens of text, of which `share` are private
    assert share * length * (draw + test) == pytest.approx(length * draw)


def test_public_logits_follow_the_released_text_and_nothing_private(decoder, language_model):
    """Two private cohorts, the same released tokens: public logits equal to the last bit."""
    seen, short = [], rules(max_document_tokens=5, min_tokens_for_new_document=2)
    for private in ([[[3, 4]], [[5, 6]]], [[], [[9, 8, 7], [4]]]):
        seen.append([])

        def select(logits):
            seen[-1].append(logits.public.clone())
            return Draws.all_private(np.full(len(logits.active), 7))

        generate_documents(decoder, private, select, short, public_prompts=[[3, 3], [4]])
    assert all(torch.equal(a, b) for a, b in zip(*seen, strict=True))
    room = {"prompt_columns": 2, "max_new_tokens": 5}
    contexts = decoder.open([[3, 3], [4]], **room, public_prefixes=[[3, 3], [4]], public=True)
    start = contexts.next_logits(torch.tensor([PAD, PAD]), torch.zeros(2, dtype=torch.long))
    assert torch.equal(seen[0][0], start)
