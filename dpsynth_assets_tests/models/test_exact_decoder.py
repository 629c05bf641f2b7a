"""Logits of the exact decoder, and what it refuses.

That they are a row's own, whatever the kernels, passes, threads and room, is shown on several sets
of kernels by `conformance.row_functions`.
"""

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, Gemma2Config, LlamaConfig

from dpsynth_assets.models.decoding.protocol import Reading
from dpsynth_assets.models.exact_decoder import (
    attention,
    integer_products,
    opening,
)
from dpsynth_assets.models.exact_decoder.attention import (
    MOST_COLUMNS,
    WEIGHT_TOTAL,
    KeyValueCache,
    Window,
    attend,
    query_limit,
)
from dpsynth_assets.models.exact_decoder.contexts import ExactContexts
from dpsynth_assets.models.exact_decoder.integer_products import (
    EXACT_INTEGERS,
    KERNELS,
    LIMIT,
    ExactDecoderError,
    exact_width,
    fastest_kernel,
    is_exact,
    quantized_rows,
    quantized_weight,
)
from dpsynth_assets.models.exact_decoder.opening import read_decoder
from dpsynth_assets.models.exact_decoder.weights import LlamaShape, computes_folder
from dpsynth_assets_tests.tiny_models import exact_decoder

VOCABULARY, COLUMNS, NEW, ROWS = 131, 24, 6, 19
CONFIG = LlamaConfig(
    vocab_size=VOCABULARY,
    hidden_size=72,
    intermediate_size=100,  # no multiple of a vector
    num_hidden_layers=2,
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=12,
    max_position_embeddings=64,
    initializer_range=0.2,
    tie_word_embeddings=False,
)
SHAPE = LlamaShape.of(CONFIG)
DOWN = "model.layers.0.mlp.down_proj.weight"


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(CONFIG).eval().requires_grad_(False)


@pytest.fixture(scope="module")
def calibration():
    return [np.random.default_rng(1).integers(VOCABULARY, size=40).tolist() for _ in range(3)]


@pytest.fixture(scope="module")
def decoder(model, calibration):
    return exact_decoder(SHAPE, model.state_dict(), calibration)


@pytest.fixture(scope="module")
def prompts():
    random = np.random.default_rng(0)
    lengths = [1, COLUMNS, *random.integers(1, COLUMNS + 1, size=ROWS - 2)]
    return [random.integers(VOCABULARY, size=length).tolist() for length in lengths]


def opened(decoder, prompts, **options):
    own = {name: options.pop(name) for name in ("threads", "tokens_per_pack") if name in options}
    options = {"prompt_columns": COLUMNS, "max_new_tokens": NEW} | options
    return (
        ExactContexts(decoder, prompts, Reading(**options), **own)
        if own
        else decoder.open(prompts, **options)
    )


def decoded(decoder, prompts, **options):
    """Logits of three tokens a row, (3, R, V); what is written depends on the prompt alone."""
    contexts = opened(decoder, prompts, **options)
    steps = []
    for step in range(3):
        tokens = torch.tensor([(sum(prompt) + step) % VOCABULARY for prompt in prompts])
        steps.append(contexts.next_logits(tokens, torch.full((len(prompts),), step)))
    return torch.stack(steps)


def require_exact(kernel):
    if not is_exact(kernel, (64, 576)):
        pytest.skip(f"this processor does not compute the kernel {kernel} exactly")


def assert_equal_bits(left, right):
    assert torch.equal(left.view(torch.int32), right.view(torch.int32))


@pytest.fixture(scope="module")
def together(decoder, prompts):
    return decoded(decoder, prompts)


def test_logits_are_close_to_those_of_transformers(model, decoder, prompts, together):
    for row, prompt in enumerate(prompts):
        tokens = [*prompt, (sum(prompt) + 1) % VOCABULARY, (sum(prompt) + 2) % VOCABULARY]
        expected = model(torch.tensor([tokens])).logits[0, -3:]
        error = (together[:, row] - expected).square().mean() / expected.square().mean()
        assert error < 0.01


def test_calibration_changes_precision_and_not_the_model(model, prompts, together):
    plain = decoded(exact_decoder(SHAPE, model.state_dict()), prompts)
    assert not torch.equal(plain, together)
    assert (plain - together).square().mean() < 0.01 * together.square().mean()


def test_a_shared_prefix_is_read_once_and_changes_nothing(decoder, prompts, monkeypatch):
    prefix = [3, 1, 4, 1, 5]
    sharing = [prefix + prompt[:12] for prompt in prompts] + [prefix, prefix[:3], prompts[1]]
    alone = decoded(decoder, sharing)
    forward, read = decoder.forward, []

    def counting(cache, pack, *, fill=False, **options):
        read.extend([len(pack.tokens)] * fill)
        return forward(cache, pack, fill=fill, **options)

    monkeypatch.setattr(decoder, "forward", counting)
    assert_equal_bits(decoded(decoder, sharing, public_prefixes=[prefix, [9, 9]]), alone)
    own = [len(prompt) - 1 for prompt in sharing]
    assert sum(read) == len(prefix) + sum(own) - len(prefix) * ROWS  # `prefix` itself is too short


def test_rows_restart_and_leave(decoder, prompts, together):
    contexts = opened(decoder, prompts)
    start = torch.zeros(ROWS, dtype=torch.long)
    written = torch.tensor([(sum(prompt) + 1) % VOCABULARY for prompt in prompts])
    contexts.next_logits(start, start)
    contexts.next_logits(written, start + 1)
    assert_equal_bits(contexts.next_logits(written, start), together[0])
    kept = torch.tensor([7, 2, 11])
    contexts.keep(kept)
    assert len(contexts) == 3
    mixed = contexts.next_logits(written[kept], torch.tensor([0, 1, 0]))
    assert_equal_bits(mixed, torch.stack([together[0, 7], together[1, 2], together[0, 11]]))


def test_no_rows_cost_nothing_and_rows_end_at_the_models_positions(decoder):
    assert decoder.attention_limit == CONFIG.max_position_embeddings
    contexts = opened(decoder, [])
    nothing = torch.zeros(0, dtype=torch.long)
    assert contexts.next_logits(nothing, nothing).shape == (0, VOCABULARY)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(1, 576, 40), (3, 1536, 33), (40, 96, 8)])
def test_products_are_exact_sums(kernel, rows, inputs, outputs):
    require_exact(kernel)
    random = np.random.default_rng(0)
    left = random.integers(-LIMIT, LIMIT + 1, size=(rows, inputs))
    right = random.integers(-LIMIT, LIMIT + 1, size=(outputs, inputs))
    left[0], right[:, 0] = LIMIT, LIMIT
    right[0] = LIMIT  # the largest sum there is, and a scale of 1
    product = KERNELS[kernel](*quantized_weight(torch.from_numpy(right).float()))
    got = product(torch.from_numpy(left + 128).to(torch.uint8))
    np.testing.assert_array_equal(got.numpy(), (left @ right.T).astype(np.float32))


@pytest.mark.parametrize(
    ("inputs", "largest"), [(40, LIMIT), (1536, LIMIT), (5000, LIMIT), (5000, 3)]
)
def test_no_sum_of_a_block_exceeds_what_float32_counts(inputs, largest):
    random = np.random.default_rng(0)
    integers = torch.from_numpy(random.integers(-largest, largest + 1, (7, inputs), np.int8))
    integers[0] = largest
    width = exact_width(integers)
    sums = [part.long().abs().sum(1).max() * LIMIT for part in integers.split(width, dim=1)]
    assert max(sums) <= EXACT_INTEGERS
    assert (width == inputs) == (largest * LIMIT * inputs <= EXACT_INTEGERS)


class _Saturating:
    """Adds pairs of products in 16 bits, as int8 products do on processors without VNNI."""

    def __init__(self, integers, scale):
        self.integers, self.scale = integers.int(), scale

    def __call__(self, activations):
        products = activations.int()[:, None] * self.integers[None]
        pairs = products.unflatten(2, (-1, 2)).sum(3).clamp(-(2**15), 2**15 - 1)
        return (pairs.sum(2) - 128 * self.integers.sum(1)).float() * self.scale


class _Rounding:
    """Multiplies with the precision of bfloat16."""

    def __init__(self, integers, scale):
        self.integers, self.scale = integers.t().bfloat16(), scale

    def __call__(self, activations):
        return ((activations.float() - 128).bfloat16() @ self.integers).float() * self.scale


class _Missing:
    def __init__(self, integers, scale):
        raise AttributeError("no such operation in this build")


@pytest.mark.parametrize("wrong", [_Saturating, _Rounding, _Missing])
def test_a_kernel_that_is_not_exact_is_never_chosen(monkeypatch, wrong):
    monkeypatch.setitem(integer_products.KERNELS, "int8", wrong)
    assert not is_exact("int8", (6, 40))
    monkeypatch.setattr(integer_products, "_fastest", integer_products._fastest.__wrapped__)
    assert fastest_kernel([(6, 40), (8, 64)]) != "int8"


def test_a_kernel_is_chosen_among_those_that_are_exact_for_every_shape(monkeypatch):
    """int8 is right on the first shape alone, as it is on a very small one."""
    monkeypatch.setattr(
        integer_products,
        "is_exact",
        lambda kernel, shape: kernel == "float32" or (kernel == "int8" and shape == (1, 1)),
    )
    monkeypatch.setattr(integer_products, "_fastest", integer_products._fastest.__wrapped__)
    assert fastest_kernel([(1, 1), (2, 2)]) == "float32"


def test_a_processor_without_an_exact_kernel_is_told_in_one_line(monkeypatch):
    monkeypatch.setattr(integer_products, "KERNELS", {"int8": _Saturating, "float32": _Rounding})
    monkeypatch.setattr(integer_products, "_fastest", integer_products._fastest.__wrapped__)
    with pytest.raises(ExactDecoderError, match="from all of int8, float32") as refusal:
        fastest_kernel([(6, 40)])
    assert "\n" not in str(refusal.value)


def test_rows_are_rounded_to_the_nearest_of_255_integers():
    x = torch.tensor([[1.0, -1.0, 0.5, 0.001], [0.0, 0.0, 0.0, 0.0], [-3e8, 1e8, 0.0, 2e8]])
    rounded, largest = quantized_rows(x.clone())
    expected = (x / largest * LIMIT).round() + 128
    assert rounded.dtype == torch.uint8
    assert rounded.tolist() == expected.tolist()


@pytest.mark.parametrize("bags", [True, False])
@pytest.mark.parametrize("depth", [8, 64, 96, 128, 256])
def test_scores_and_sums_of_values_stay_exact_at_their_largest(monkeypatch, depth, bags):
    """Extreme queries, keys, values and weights against 64-bit integers, by both products."""
    monkeypatch.setattr(attention, "_bags_pay", lambda _: bags)
    shape = LlamaShape(1, 64, 2, 1, depth, 256, 10, 1e-5, 1e4)
    cache = KeyValueCache(shape, rows=1, columns=256)
    limit = query_limit(depth)
    assert limit * (LIMIT * depth + 1) <= EXACT_INTEGERS  # a key of 127 is 255 with a bias of -128
    assert (WEIGHT_TOTAL + MOST_COLUMNS / 2) * LIMIT + WEIGHT_TOTAL <= EXACT_INTEGERS
    random = np.random.default_rng(0)
    keys, values = random.choice([-LIMIT, LIMIT, LIMIT - 1], size=(2, 256, depth))
    keys[:100], values[:100] = LIMIT, LIMIT
    rows, columns = torch.zeros(256, dtype=torch.long), torch.arange(256)
    integers = torch.from_numpy(np.stack([keys, values], axis=1) + 128).to(torch.uint8)
    cache.write(0, rows, columns, integers, torch.tensor([[1e-6, WEIGHT_TOTAL]]).expand(256, 2))
    queries = np.full((1, 1, 2, depth), limit)
    queries[..., 1, ::2] -= 1
    window = Window.of(shape, cache, slice(0, 1), torch.tensor([[240]]))
    assert (window.bags is not None) == bags
    got = attend(
        shape, cache, 0, window, torch.from_numpy(queries).float(), torch.full((1, 1, 2), 0.01)
    )
    exact = (queries[0, 0] @ keys.T).astype(np.float32)
    scores = torch.from_numpy(exact).mul(1e-6).mul_(0.01).add_(window.mask[0, 0])
    weights = torch.softmax(scores, -1).mul_(WEIGHT_TOTAL).round_().long().numpy()
    assert weights.sum() > 0.99 * WEIGHT_TOTAL
    np.testing.assert_array_equal(got.view(2, depth).numpy(), weights @ values)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (Gemma2Config(), "model type 'llama', got 'gemma2'"),
        (LlamaConfig(attention_bias=True), "biases"),
        (LlamaConfig(hidden_act="gelu"), "activation 'silu', got 'gelu'"),
    ],
)
def test_other_models_are_refused_in_one_line(config, expected):
    with pytest.raises(ExactDecoderError, match=expected) as refusal:
        LlamaShape.of(config)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda table: table["model.layers.1.mlp.up_proj.weight"][3].fill_(torch.nan), "up_proj"),
        (lambda table: table["model.norm.weight"].fill_(torch.inf), "model.norm"),
        (lambda table: table.update({DOWN: table[DOWN][:, :-1].contiguous()}), "down_proj"),
        (lambda table: table.pop(DOWN), "down_proj"),
        (lambda table: table["lm_head.weight"][2].fill_(torch.nan), "lm_head"),
    ],
)
def test_weights_that_fit_no_kernel_are_refused_in_one_line(tmp_path, model, change, told):
    table = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    change(table)
    CONFIG.save_pretrained(tmp_path)
    save_file(table, tmp_path / "model.safetensors")
    with pytest.raises(ExactDecoderError, match=told) as refusal:
        read_decoder(tmp_path, [])
    assert "\n" not in str(refusal.value)


def test_a_folder_without_weights_is_refused(tmp_path):
    with pytest.raises(ExactDecoderError, match=r"one model.safetensors, found none"):
        read_decoder(tmp_path, [])


def test_quantized_weights_are_stored_once_and_give_the_same_bits(tmp_path, monkeypatch):
    torch.manual_seed(0)
    folder, store = tmp_path / "model", tmp_path / "store"
    AutoModelForCausalLM.from_config(CONFIG).save_pretrained(folder)
    prompts = [[3, 5, 7, 9], [11, 2]]
    made = decoded(read_decoder(folder, prompts), prompts)
    assert_equal_bits(decoded(read_decoder(folder, prompts, store), prompts), made)
    (file,) = store.iterdir()
    assert file.stat().st_mode & 0o077 == store.stat().st_mode & 0o077 == 0
    monkeypatch.setattr(opening, "calibrated_table", None)  # Nothing is quantized again.
    assert_equal_bits(decoded(read_decoder(folder, prompts, store), prompts), made)
    with pytest.raises(TypeError):
        read_decoder(folder, prompts[:1], store)  # Made of another text.


def test_folders_that_are_computed_are_told_from_others(tmp_path):
    AutoModelForCausalLM.from_config(CONFIG).save_pretrained(tmp_path / "llama")
    Gemma2Config().save_pretrained(tmp_path / "gemma")
    told = [computes_folder(tmp_path / name) for name in ("llama", "gemma", "nothing")]
    assert told == [True, False, False]
