"""One protocol of decoders, one loop that writes free text over it, and their parts.

`protocol` says what a decoder does; `opening` opens one by its kind: exact integers, transformers,
vLLM, or another package's. `writing` cuts prompts into passes and `loop` writes them.

Shape letters: R rows, P prompt columns (a public pad length), T new tokens, V vocabulary,
L layers, d width.
"""

from dpsynth_assets.models.decoding.constraint import ConstrainedText, JsonConstraint
from dpsynth_assets.models.decoding.opening import open_decoder
from dpsynth_assets.models.decoding.protocol import (
    Contexts,
    Decoder,
    attention_limit,
    public_prefix,
)
from dpsynth_assets.models.decoding.writing import sample_documents
