import numpy as np
import pytest
from hypothesis import given, strategies as st

from dpsynth_assets.privacy.errors import UnaccountedReleaseError
from dpsynth_assets.privacy.token_selection import PrivateTokenMeter


@given(st.integers(0, 6), st.lists(st.lists(st.integers(0, 3), max_size=4), max_size=12))
def test_no_sequence_of_requests_draws_more_than_r_tokens(tokens, requests):
    meter = PrivateTokenMeter(tokens, 4)
    drawn = np.zeros(4, dtype=int)
    for request in requests:
        try:
            meter.spend(np.array(request, dtype=np.int64))
        except UnaccountedReleaseError:
            continue
        drawn += np.bincount(np.array(request, dtype=np.int64), minlength=4)
    assert (drawn <= tokens).all()
    assert (meter.spent == drawn).all()
    assert (meter.exhausted == (drawn >= tokens)).all()


@pytest.mark.parametrize("indices", [[-1], [3], [0, 7]])
def test_unknown_batches_are_refused(indices):
    with pytest.raises(UnaccountedReleaseError, match="batch indices"):
        PrivateTokenMeter(5, 3).spend(np.array(indices))


def test_meter_cannot_be_reset_through_its_readings():
    meter = PrivateTokenMeter(1, 2)
    meter.spend(np.array([0]))
    meter.spent[:] = 0
    assert meter.exhausted.tolist() == [True, False]


def test_negative_sizes_are_refused():
    with pytest.raises(ValueError, match="tokens_per_batch"):
        PrivateTokenMeter(-1, 2)
