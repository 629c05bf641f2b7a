"""The protocol of decoders, and the loop that writes free text with them.

`protocol` says what a decoder does; `writing` cuts prompts into passes and writes them. Decoders
are opened by their kind (`engines.protocol`): exact integers, transformers, vLLM, or another's.

Shape letters: R rows, P prompt columns (a public pad length), T new tokens, V vocabulary,
L layers, d width.
"""

from dpsynth_assets.models.decoding.constraint import ConstrainedText, JsonConstraint
from dpsynth_assets.models.decoding.protocol import (
    Contexts,
    Decoder,
    attention_limit,
    public_prefix,
)
from dpsynth_assets.models.decoding.writing import sample_documents
from dpsynth_assets.models.engines.protocol import open_decoder
