"""What a step of vLLM must hold, without vLLM: rows as its batches have them, made up."""

import random
import re

import numpy as np
import pytest
import torch

from dpsynth_assets.models.vllm_decoder.lockstep import Document, LockstepError, Row, Step

VOCABULARY = 11


class Batch:
    """Rows of one step in any order; some of them read a part of their tokens only."""

    def __init__(self, members, written, partial=(), group="pass0", seed=0):
        draw = random.Random(seed)
        self.order = draw.sample(list(members), len(members))
        self.rows = {
            place: Row(group, member, [3] * written.get(member, 0))
            for place, member in enumerate(self.order)
        }
        self.logits = torch.randn(len(self.order), VOCABULARY)
        self.partial = np.array([member in partial for member in self.order], dtype=bool)

    def of(self, members):
        return torch.stack([self.logits[self.order.index(member)] for member in members])

    def step(self, written):
        documents = {member: Document(length, 3) for member, length in written.items()}
        return Step("pass0", documents, lambda rows: self.partial[:rows])


WRITTEN = {4: 0, 2: 5, 7: 1, 0: 0}


@pytest.mark.parametrize("seed", range(6))
def test_logits_come_in_the_order_of_the_members_and_may_be_changed(seed):
    batch = Batch(WRITTEN, WRITTEN, seed=seed)
    step = batch.step(WRITTEN)
    assert not step.done
    step.see(batch.rows, batch.logits)
    assert step.done
    assert torch.equal(step.logits(4), batch.of([4, 2, 7, 0]))
    assert torch.equal(step.logits(2), batch.of([4, 2]))  # the others fill the step up
    before = batch.logits.clone()
    step.logits(4)[:] = 0
    assert torch.equal(batch.logits, before)


def test_logits_of_rows_in_order_are_copied_and_ordinary_tensors():
    batch = Batch([0, 1], {0: 1, 1: 1})
    batch.rows = {0: Row("pass0", 0, [3]), 1: Row("pass0", 1, [3])}
    step = batch.step({0: 1, 1: 1})
    with torch.inference_mode():
        seen = batch.logits + 1
        step.see(batch.rows, seen)
    for rows in (2, 1):
        step.logits(rows)[:] = 0
    assert seen.any()


def test_parts_of_prompts_are_masked():
    batch = Batch(WRITTEN, WRITTEN, partial=WRITTEN)
    step = batch.step(WRITTEN)
    step.see(batch.rows, batch.logits)
    assert not step.done
    with pytest.raises(LockstepError):
        step.logits(4)


def violations():
    some = {member: WRITTEN[member] for member in (4, 2, 7)}
    yield "a member is missing", Batch(some, WRITTEN)
    yield "a member has read a part only", Batch(WRITTEN, WRITTEN, partial=(7,))
    yield "all but one have", Batch(WRITTEN, WRITTEN, partial=(4, 2, 7))
    yield "there is one more", Batch([*WRITTEN, 9], WRITTEN)
    yield "one is ahead", Batch(WRITTEN, WRITTEN | {7: 2})
    yield "one is behind", Batch(WRITTEN, WRITTEN | {2: 4})
    yield "another pass", Batch(WRITTEN, WRITTEN, group="pass1")
    foreign = Batch(WRITTEN, WRITTEN)
    foreign.rows[0] = foreign.rows[0]._replace(group="pass1")
    yield "one of another pass", foreign
    unknown = Batch(WRITTEN, WRITTEN)
    del unknown.rows[2]
    yield "a row of no group", unknown
    changed = Batch(WRITTEN, WRITTEN)
    place = changed.order.index(2)
    changed.rows[place] = Row("pass0", 2, [3, 3, 3, 3, 8])
    yield "a document with another end", changed


@pytest.mark.parametrize(("what", "batch"), violations(), ids=lambda value: str(value)[:30])
def test_a_violation_raises_and_tells_nothing_of_the_contexts(what, batch):
    step = batch.step(WRITTEN)
    with pytest.raises(LockstepError, match="nothing was sampled") as raised:
        step.see(batch.rows, batch.logits)
    assert not step.done
    assert "\n" not in str(raised.value)
    assert not re.search(r"\d", str(raised.value))


def test_a_group_steps_once():
    batch = Batch(WRITTEN, WRITTEN)
    step = batch.step(WRITTEN)
    step.see(batch.rows, batch.logits)
    with pytest.raises(LockstepError, match="twice"):
        step.see(batch.rows, batch.logits)
