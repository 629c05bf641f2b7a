import math

import numpy as np
import pytest

from dpsynth_assets.metrics.evaluation import EvaluationSettings, PrivateReference
from dpsynth_assets.metrics.metric import ScoredSide, Sides
from dpsynth_assets.metrics.surviving_terms import MORE, SURVIVING_TERMS, least_holders


def test_shares_are_of_terms_that_public_text_lacks_by_how_many_records_hold_them():

    none = np.zeros((0, 2), dtype=np.float32)
    rare, often = ([f"{kind}{n}" for n in range(20)] for kind in ("rare", "often"))
    records = [*(rare * 3), *(often * 12), *(["everyday"] * 12), *(["few"] * 7)]
    side = {"texts": [" and ".join([*rare[:1], *often[:15], "everyday"])]}
    sides = Sides(
        corpus=ScoredSide(features=none, **side),
        held_out=ScoredSide(features=none),
        settings=EvaluationSettings(),
        labelled=False,
        reference=PrivateReference(
            source=ScoredSide(texts=records, labels=[], features=none),
            held_out=ScoredSide(texts=[], labels=[], features=none),
        ),
        public_texts=["Everyday words"],
    )  # fmt: skip
    found = [metric.of(sides) for metric in SURVIVING_TERMS]
    assert found == [1 / 20, None, 15 / 20, None, None, None]


@pytest.mark.parametrize(("epsilon", "delta"), [(1e-2, 0.0), (0.5, 1e-5), (1.0, 1e-2), (0.0, 3e-4)])
def test_fewer_holders_than_the_least_cannot_bring_a_term(epsilon, delta):
    # What k steps of p -> e^ε p + δ make of q, in closed form: its bound at 1 is not reached here.
    def reached(records):
        steps = math.expm1(records * epsilon) / math.expm1(epsilon) if epsilon else records
        return 0.001 * math.exp(records * epsilon) + delta * steps

    least = least_holders(epsilon, delta)
    assert reached(least - 1) <= 0.001 + MORE < reached(least)


def test_a_guarantee_of_no_difference_has_no_least_number_and_a_large_one_needs_one_record():
    assert least_holders(0.0, 0.0) is least_holders(1e-17, 0.0) is None
    assert (least_holders(10.0, 0.0), least_holders(math.inf, 0.0)) == (1, 1)
    # Near certainty the opposite event bounds: 1 - e^-ε (1 - p), here after one step and two.
    once = 1 - math.exp(-1) * 0.5
    assert once > 0.5 + MORE
    assert least_holders(1.0, 0.0, chance=0.5) == 1
