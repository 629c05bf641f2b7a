"""The conditional generator of a base is its language model, unless it names weights."""

import dagster as dg

from dpsynth_assets.datasets import PublicDataSpec
from dpsynth_assets.orchestration.assets.keys import public_key
from dpsynth_assets.orchestration.assets.public import generation_definitions

KEY = public_key("letters", "conditional_generator")
NOT_OPENED = {"models": None, "progress": None}


def generator_asset(**declared):
    definitions = generation_definitions(PublicDataSpec(name="letters", **declared))
    return next(each for each in definitions.assets if each.key == KEY)


def test_it_depends_on_the_language_model_alone_and_names_its_folder():
    asset = generator_asset(language_model={"kind": "smollm2"})
    model = public_key("letters", "public_language_model")
    assert asset.asset_deps[KEY] == {model}
    output = asset(
        dg.build_asset_context(NOT_OPENED),
        public_language_model={"path": "/models/smollm2", "dtype": "bfloat16"},
    )
    assert output.value == {"path": "/models/smollm2", "dtype": "float32", "device": "auto"}


def test_named_weights_depend_on_nothing():
    asset = generator_asset(conditional_generator={"kind": "pretrained", "model": "owner/name"})
    assert not asset.asset_deps[KEY]
    assert asset(dg.build_asset_context(NOT_OPENED)).value == {
        "path": "owner/name",
        "dtype": "float32",
        "device": "auto",
    }
