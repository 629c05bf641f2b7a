import pytest

from dpsynth_assets.cli.pricing.table10 import AMIN_2025_TABLE_10
from dpsynth_assets.privacy.calibration import largest_token_count

TIGHT = (416, 373, 393, 409, 366, 387, 835, 723, 776, 785, 680, 730)


@pytest.mark.parametrize(
    ("setting", "tight"), list(zip(AMIN_2025_TABLE_10, TIGHT, strict=True)), ids=str
)
def test_printed_tokens_are_reproduced_and_optimal_composition_buys_a_tenth_more(setting, tight):
    for accountant, tokens in (("zcdp", setting.printed_tokens), ("tight", tight)):
        count = largest_token_count(
            eta=2 * setting.clip_bound / (setting.expected_batch_size * setting.temperature),
            target_epsilon=setting.target_epsilon,
            delta=setting.delta,
            accountant=accountant,
        )
        assert count == tokens
