"""The kernels for CUDA devices keep the law, and compute what processors do."""

import pytest

from dpsynth_assets_tests.children import python

pytest.importorskip("triton")

_LAW = """
import numpy as np
import torch
from transformers import AutoModelForCausalLM, LlamaConfig
from dpsynth_assets.models.decoding.protocol import Reading, StateReading
from dpsynth_assets.models.exact_decoder import gpu_decoder
from dpsynth_assets.models.exact_decoder.decoder import calibrated_table
from dpsynth_assets_tests.tiny_models import exact_decoder
from dpsynth_assets.models.exact_decoder.weights import EMBEDDINGS, LlamaShape

place = "cuda" if torch.cuda.is_available() else "cpu"
if place == "cpu":  # The interpreter takes milliseconds a program.
    gpu_decoder._ROW_MULTIPLE = 2  # Three rows are filled up.
config = LlamaConfig(
    vocab_size=131, hidden_size=72, intermediate_size=100, num_hidden_layers=1, head_dim=12,
    num_attention_heads=2, num_key_value_heads=1, initializer_range=0.2,
    max_position_embeddings=128, tie_word_embeddings=False,
)
shape, random = LlamaShape.of(config), np.random.default_rng(0)
torch.manual_seed(0)
table = AutoModelForCausalLM.from_config(config).state_dict()
prompts = [random.integers(131, size=n).tolist() for n in (1, 66, 9)]  # two blocks of columns
processor = exact_decoder(shape, table, prompts)
quantized = calibrated_table(shape, table, prompts)
device = gpu_decoder.DeviceDecoder(shape, table[EMBEDDINGS], quantized, place)

def decoded(decoder, prompts, added=None, **options):
    reading = Reading(66, 6, added=added or {})
    contexts = decoder._read(prompts, reading)
    if options:
        contexts = gpu_decoder.DeviceContexts(decoder, prompts, reading, **options)
    tokens = torch.tensor([sum(prompt) % 131 for prompt in prompts])
    steps = [contexts.next_logits(tokens, torch.full_like(tokens, n)).cpu().clone() for n in (0, 1)]
    return torch.stack(steps)

def assert_equal_bits(left, right):
    assert torch.equal(left.view(torch.int32), right.view(torch.int32))

def assert_near(left, right):
    assert (left - right).square().mean() < 1e-3 * left.square().mean()

together = decoded(device, prompts)
assert_near(decoded(processor, prompts), together)
assert_equal_bits(decoded(device, prompts[::-1]), together.flip(1))
assert_equal_bits(decoded(device, prompts[2:], tokens_per_pack=1), together[:, 2:])
own = device.open([prompts[2][:1]], prompt_columns=1, max_new_tokens=9)
for place, token in enumerate(prompts[2]):  # read by steps, not by a prefill
    logits = own.next_logits(torch.tensor([token]), torch.tensor([place])).cpu()
assert_equal_bits(logits, together[0, 2:])
start = torch.zeros(3, dtype=torch.long)
kept = device.open([[7, 8, *p[:5]] for p in prompts], prompt_columns=8, max_new_tokens=3,
                   public_prefixes=[[7, 8]])
first = kept.next_logits(start, start).cpu().clone()
kept.keep(torch.tensor([2, 0]))
kept.keep(torch.tensor([0, 1, 0]))
assert_equal_bits(kept.next_logits(start, start).cpu(), first[[2, 0, 2]])
added = {0: random.standard_normal(72).astype(np.float32)}
assert_near(*(decoded(each, prompts[2:], added) for each in (processor, device)))
reading = StateReading((0,), begin=[3])
states = [each.hidden_states(prompts[2:], reading)[0] for each in (processor, device)]
assert_near(*map(torch.from_numpy, states))
gpu_decoder.DeviceProduct.__call__ = lambda own, rows: rows.half() @ own.integers.t().half()
try:
    gpu_decoder._require_exact.__wrapped__(str(device.device), shape, ((96, 960),))
except gpu_decoder.ExactDecoderError as error:
    assert "Expected a CUDA device with exact int8 products" in str(error)
else:
    raise AssertionError("rounded sums were taken for exact ones")
"""


def test_the_law_holds_in_the_kernels():
    """In Triton's interpreter, which must be chosen before Triton is imported, or on a GPU."""
    import torch

    interpreted = {} if torch.cuda.is_available() else {"TRITON_INTERPRET": "1"}
    python("-c", _LAW, **interpreted)
