"""Opens public models from what their assets say of them: on first use, once a process."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dpsynth_assets.datasets.engine import EngineSpec
from dpsynth_assets.files.shared_models import local_copy
from dpsynth_assets.models.kept import opened_once

if TYPE_CHECKING:
    from dpsynth_assets.models.conditional_generator import ConditionalGenerator
    from dpsynth_assets.models.engines import Engine
    from dpsynth_assets.models.language_model import LanguageModel
    from dpsynth_assets.models.text_embedder import TextEmbedder
    from dpsynth_assets.models.topic_model import TopicModel


class OpenedModels:
    """Opens the models that a public base made or named."""

    def text_embedder(self, manifest: Mapping[str, Any]) -> "TextEmbedder":
        """Opens the embedder that the artifact `text_embedder` describes."""
        from dpsynth_assets.models.text_embedder import TextEmbedder

        return opened_once(TextEmbedder, manifest["model"], manifest["max_tokens"])

    def language_model(self, manifest: Mapping[str, Any]) -> "LanguageModel":
        """Opens the model that the artifact `public_language_model` describes."""
        from dpsynth_assets.models.language_model import load_language_model

        return opened_once(load_language_model, **_place(manifest))

    def engine(self, spec: EngineSpec, language_model: "LanguageModel | None") -> "Engine":
        """Opens the engine of a dataset file, serving the language model unless it names one."""
        from dpsynth_assets.models.engines.opening import open_engine

        return open_engine(spec, language_model=language_model)

    def topic_model(self, manifest: Mapping[str, Any]) -> "TopicModel":
        """Opens the topics that the artifact `topic_model` describes."""
        from dpsynth_assets.models.topic_model import TopicModel

        return opened_once(TopicModel.load, local_copy(manifest["path"]))

    def conditional_generator(self, manifest: Mapping[str, Any]) -> "ConditionalGenerator":
        """Opens the generator that the artifact `conditional_generator` describes."""
        from dpsynth_assets.models.conditional_generator import load_conditional_generator

        return opened_once(load_conditional_generator, **_place(manifest))


def opened_engine(spec: EngineSpec, manifest: Mapping[str, Any] | None) -> "Engine":
    """Opens the engine of a dataset file, once a process, from public values alone.

    Args:
        spec: The engine.
        manifest: The artifact `public_language_model`, if there is one.
    """
    models = OpenedModels()
    return models.engine(spec, None if manifest is None else models.language_model(manifest))


def _place(manifest: Mapping[str, Any]) -> dict[str, Any]:
    path = local_copy(manifest["path"])
    return {"path_or_id": path, "dtype": manifest["dtype"], "device": manifest["device"]}
