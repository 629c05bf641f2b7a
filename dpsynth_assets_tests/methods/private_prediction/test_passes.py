"""Passes in order of their numbers, and what is told of them."""

from dataclasses import replace

import numpy as np
import pytest

from dpsynth_assets.methods.private_prediction.loop import GenerationRules
from dpsynth_assets.methods.private_prediction.passes import PassProgress

RULES = GenerationRules(
    tokens_per_batch=100,
    max_document_tokens=20,
    min_tokens_for_new_document=11,
    end_token_id=1,
    pad_token_id=0,
    prompt_columns=8,
)


def test_passes_are_counted_and_shares_never_fall():
    seen = []
    told = PassProgress(8, 16, RULES, lambda share, message: seen.append((share, message)))

    for _ in range(8):
        for number in range(1, 96):
            told.step(number)
        told.finish(95, np.array([150, 30]))
    shares = [share for share, _ in seen]
    assert shares == sorted(shares)
    assert len(seen) == 8 * (90 + 1)  # the 90 steps that are certain of each pass, and its end
    last = "8 of 8 passes with 1200 of at most 1600 private tokens, 240 public ones"
    assert seen[-1] == (1.0, last)


def test_steps_that_draws_decide_on_are_not_told():
    seen = []
    told = PassProgress(2, 2, RULES, lambda share, message: seen.append(message))
    for number in range(1, 101):
        told.step(number)
    assert seen[-1] == "0 of 2 passes, 90 steps in progress"
    told.finish(100, None)
    assert seen[-1] == "1 of 2 passes"


@pytest.mark.parametrize(
    ("changes", "certain", "most"),
    [
        ({}, 90, 100),
        ({"min_tokens_for_new_document": 1}, 100, 100),
        ({"min_tokens_for_new_document": 101}, 0, 100),
        ({"max_tokens_per_batch": 70}, 70, 70),
        ({"max_tokens_per_batch": 300}, 90, 300),
    ],
    ids=str,
)
def test_steps_of_a_pass_are_bounded_by_its_public_rules(changes, certain, most):
    rules = replace(RULES, **changes)
    assert (rules.certain_steps, rules.most_steps) == (certain, most)
