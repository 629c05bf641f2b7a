"""The conditional generator of a base is its language model, unless it names weights."""

import pytest

from dpsynth_assets.datasets import PublicDataSpec
from dpsynth_assets.orchestration.assets.keys import public_key
from dpsynth_assets.orchestration.assets.public import generation_definitions

KEY = public_key("letters", "conditional_generator")
NAMED = {"conditional_generator": {"kind": "pretrained", "model": "owner/name"}}


@pytest.mark.parametrize(
    ("declared", "read"),
    [({"language_model": {"kind": "smollm2"}}, ["public_language_model"]), (NAMED, [])],
)
def test_it_depends_on_the_language_model_alone_or_on_nothing(declared, read):
    definitions = generation_definitions(PublicDataSpec(name="letters", **declared))
    (asset,) = [each for each in definitions.assets if each.key == KEY]
    assert asset.asset_deps[KEY] == {public_key("letters", name) for name in read}
