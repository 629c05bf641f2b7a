import pytest

from dpsynth_assets.cli.pricing.table10 import AMIN_2025_TABLE_10
from dpsynth_assets.privacy.calibration import largest_token_count

TIGHT = (416, 373, 393, 409, 366, 387, 835, 723, 776, 785, 680, 730)


def eta(setting):
    return 2 * setting.clip_bound / (setting.expected_batch_size * setting.temperature)


@pytest.mark.parametrize("setting", AMIN_2025_TABLE_10, ids=str)
def test_every_printed_token_count_is_reproduced_exactly(setting):
    count = largest_token_count(
        eta=eta(setting),
        target_epsilon=setting.target_epsilon,
        delta=setting.delta,
        accountant="zcdp",
    )
    assert count == setting.printed_tokens


@pytest.mark.parametrize(
    ("setting", "tokens"), list(zip(AMIN_2025_TABLE_10, TIGHT, strict=True)), ids=str
)
def test_optimal_composition_buys_a_tenth_more_tokens(setting, tokens):
    count = largest_token_count(
        eta=eta(setting),
        target_epsilon=setting.target_epsilon,
        delta=setting.delta,
        accountant="tight",
    )
    assert count == tokens
