"""Engines that write text: one protocol, served by transformers, vLLM or an HTTP endpoint.

`protocol` says what an engine does; `opening` opens, once per process, what a dataset file asks
for. The transformers and vLLM engines also read a model's inside (hidden
states, logits) and steer it; the endpoint only writes, and only from text that is public already.

Shape letters: N texts or prompts, d width of the residual stream, V vocabulary.
"""

from dpsynth_assets.models.engines.protocol import (
    Capability,
    Engine,
    EngineError,
    Generation,
    Provenance,
    Sampling,
    SteeredEngine,
)

__all__ = [
    "Capability",
    "Engine",
    "EngineError",
    "Generation",
    "Provenance",
    "Sampling",
    "SteeredEngine",
]
