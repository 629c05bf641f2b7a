"""A transformers model as a decoder."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dpsynth_assets.models.decoding.protocol import Decoder, Reading, StateReading, attention_limit
from dpsynth_assets.models.engines.protocol import Capability
from dpsynth_assets.models.transformers_decoder.contexts import PackedContexts
from dpsynth_assets.models.transformers_decoder.residual_stream import pooled_states

if TYPE_CHECKING:
    import torch

    from dpsynth_assets.datasets.engine import EngineSpec

SMALL_MODEL_PARAMETERS = 20_000_000
"""Operations of a model up to this size are too short for threads to share."""
_TOKENS_PER_PASS = {"cpu": 2048, "cuda": 16384}
"""Of texts that share a pass, by the kind of device."""


class TransformersDecoder(Decoder):
    """Floating point: rounding may follow what shares a pass, so private draws charge a slack.

    Args:
        model: A causal language model, in evaluation mode.
    """

    capabilities = frozenset(Capability)

    def __init__(self, model: Any) -> None:
        self.model = model

    @property
    def device(self) -> "torch.device":
        """Where the weights are."""
        return self.model.device

    @property
    def dtype(self) -> "torch.dtype":
        """Number type of the weights."""
        return self.model.dtype

    @property
    def attention_limit(self) -> int | None:
        """Positions of the model, or its sliding window."""
        return attention_limit(self.model.config)

    @property
    def is_small(self) -> bool:  # type: ignore[override]
        """Whether threads of a processor had better run passes of their own."""
        if self.device.type != "cpu":
            return False
        return sum(each.numel() for each in self.model.parameters()) <= SMALL_MODEL_PARAMETERS

    @property
    def engine_name(self) -> str:
        """Names transformers with its version."""
        import transformers

        return f"transformers {transformers.__version__}"

    def _read(self, prompts: Sequence[Sequence[int]], reading: Reading) -> PackedContexts:
        return PackedContexts(self.model, prompts, reading)

    def hidden_states(
        self, texts: Sequence[Sequence[int]], reading: StateReading
    ) -> dict[int, np.ndarray]:
        """See `Decoder.hidden_states`; a private text is alone in its pass."""
        return pooled_states(self.model, texts, reading, _TOKENS_PER_PASS[self.device.type])


def opened_decoder(language_model: Any, spec: "EngineSpec | None" = None) -> Decoder:
    """Takes the weights of a language model, which are read at the first use.

    A model that decodes by itself, as the worst case of an attack does, is taken as it is.
    """
    del spec
    model = language_model.model
    return model if isinstance(model, Decoder) else TransformersDecoder(model)
