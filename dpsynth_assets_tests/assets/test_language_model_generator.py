"""The conditional generator of a base with a pretrained language model is that model."""

from dpsynth_assets.assets.keys import public_key
from dpsynth_assets.assets.public_generation import generation_definitions
from dpsynth_assets.datasets import PublicDataSpec

KEY = public_key("letters", "conditional_generator")


def generator_asset(**declared):
    definitions = generation_definitions(PublicDataSpec(name="letters", **declared))
    return next(each for each in definitions.assets if each.key == KEY)


def test_it_depends_on_the_language_model_alone_and_names_its_folder():
    asset = generator_asset(language_model={"kind": "smollm2"})
    model = public_key("letters", "public_language_model")
    assert asset.asset_deps[KEY] == {model}
    output = asset(public_language_model={"path": "/models/smollm2", "dtype": "bfloat16"})
    assert output.value == {"path": "/models/smollm2", "dtype": "float32", "device": "auto"}


def test_an_embedded_generator_is_made_of_documents_and_topics():
    names = ("public_corpus", "public_embeddings", "topic_model")
    assert generator_asset().asset_deps[KEY] == {public_key("letters", name) for name in names}
