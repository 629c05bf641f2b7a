"""The packed engine computes what the plain model computes, whoever else shares the pass."""

import gc
import weakref
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig

from dpsynth_assets.models.decoding import attention_limit, public_prefix, sample_documents
from dpsynth_assets.models.decoding.protocol import prefix_groups
from dpsynth_assets.models.engines.protocol import Sampling
from dpsynth_assets.models.transformers_decoder import (
    cached_attention,
    cuda_kernels,
    memory,
)
from dpsynth_assets.models.transformers_decoder.decoder import CapturedPasses, TransformersDecoder

VOCABULARY = 61
END, PAD = 1, 0
COLUMNS, NEW = 12, 8
SLACK = 1e-4
_ORIGINAL = "original_max_position_embeddings"

LLAMA = LlamaConfig(
    vocab_size=VOCABULARY,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
    initializer_range=0.3,
)


@pytest.fixture(scope="module", params=["sdpa", "eager"])
def model(request):
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(LLAMA, attn_implementation=request.param).eval()


@pytest.fixture(scope="module")
def llama():
    torch.manual_seed(1)
    return AutoModelForCausalLM.from_config(LLAMA, attn_implementation="sdpa").eval()


def random_prompts(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(2, COLUMNS + 1, (count,), generator=generator).tolist()
    return [torch.randint(2, VOCABULARY, (n,), generator=generator).tolist() for n in lengths]


def packed(model, prompts, **options):
    return TransformersDecoder(model).open(
        prompts, prompt_columns=COLUMNS, max_new_tokens=NEW, **options
    )


@torch.no_grad()
def plain_logits(model, tokens):
    return model(torch.tensor([tokens]), use_cache=False).logits[0, -1].float()


def test_greedy_path_equals_recomputation_without_a_cache(model):
    prompts = random_prompts(5)
    contexts = packed(model, prompts)
    documents = [[] for _ in prompts]
    tokens = torch.zeros(5, dtype=torch.long)
    for step in range(NEW):
        logits = contexts.next_logits(tokens, torch.full((5,), step))
        tokens = logits.argmax(-1)
        for prompt, document, row, token in zip(
            prompts, documents, logits, tokens.tolist(), strict=True
        ):
            expected = plain_logits(model, prompt + document)
            assert torch.allclose(row, expected, atol=SLACK)
            assert token == int(expected.argmax())
            document.append(token)


def test_rows_that_restart_read_their_prompt_again_while_others_go_on(model):
    prompts = random_prompts(4, seed=3)
    contexts = packed(model, prompts)
    documents = [[] for _ in prompts]
    tokens = torch.zeros(4, dtype=torch.long)
    for step in range(12):
        for row in range(4):
            if len(documents[row]) == NEW or (step + row) % 5 == 4:
                documents[row] = []
        generated = torch.tensor([len(document) for document in documents])
        logits = contexts.next_logits(tokens, generated)
        for row in range(4):
            expected = plain_logits(model, prompts[row] + documents[row])
            assert torch.allclose(logits[row], expected, atol=SLACK)
        tokens = logits.argmax(-1)
        for row, token in enumerate(tokens.tolist()):
            documents[row].append(token)


@pytest.mark.parametrize("kept", [[3, 20, 49], [1], list(range(1, 50)), [0, 48, 49]])
def test_dropped_rows_leave_the_others_logits_as_they_were(llama, kept):
    prompts = random_prompts(50, seed=5)
    contexts = packed(llama, prompts)
    tokens = contexts.next_logits(torch.zeros(50, dtype=torch.long), torch.zeros(50).long())
    tokens = tokens.argmax(-1)
    contexts.keep(torch.tensor(kept))
    assert len(contexts) == len(kept)
    logits = contexts.next_logits(tokens[kept], torch.ones(len(kept), dtype=torch.long))
    for row, index in enumerate(kept):
        expected = plain_logits(llama, prompts[index] + [int(tokens[index])])
        assert torch.allclose(logits[row], expected, atol=SLACK)


def test_the_cache_is_free_once_contexts_are(llama):
    contexts = packed(llama, random_prompts(3))
    contexts.next_logits(torch.zeros(3, dtype=torch.long), torch.zeros(3, dtype=torch.long))
    cache = weakref.ref(contexts._cache)
    gc.disable()
    try:
        del contexts
        assert cache() is None
    finally:
        gc.enable()


@torch.no_grad()
def test_the_models_own_passes_stay_as_they_were():
    model = AutoModelForCausalLM.from_config(LLAMA, attn_implementation="sdpa").eval()
    tokens, mask = torch.tensor(random_prompts(3)[:1] * 2), torch.ones(2, 1).long()
    mask = mask.repeat(1, tokens.shape[1])
    mask[1, :2] = 0  # of truth values within transformers; without one no mask at all
    before = [model(tokens, attention_mask=own).logits for own in (None, mask)]
    packed(model, random_prompts(3)).next_logits(torch.zeros(3).long(), torch.zeros(3).long())
    assert model.config._attn_implementation != "sdpa"
    after = [model(tokens, attention_mask=own).logits for own in (None, mask)]
    assert all(map(torch.equal, before, after))


def test_low_precision_on_the_processor_is_refused():
    model = AutoModelForCausalLM.from_config(LLAMA, dtype=torch.bfloat16).eval()
    with pytest.raises(ValueError, match="float32"):
        packed(model, [[2]])


def test_a_prompt_beyond_the_public_length_is_refused_without_showing_it(llama):
    for prompt in ([37] * (COLUMNS + 1), []):
        with pytest.raises(ValueError, match=f"1..{COLUMNS}") as caught:
            packed(llama, [prompt])
        assert "37" not in str(caught.value)


def sample(model, prompts, limits=None, **rules):
    return sample_documents(
        TransformersDecoder(model),
        SimpleNamespace(end_token_id=END, pad_token_id=PAD),
        prompts,
        Sampling(max_new_tokens=NEW, **rules),
        limits=limits,
    )


def test_sampled_documents_hold_neither_end_nor_padding(llama):
    documents = sample(llama, random_prompts(64), temperature=5.0)
    assert any(len(document) < NEW for document in documents)
    assert all({END, PAD}.isdisjoint(document) for document in documents)


POSITIONS = 64  # of the llama


def test_prompts_have_to_fit_with_their_own_limits_not_with_each_others(llama):
    """Lengths and limits that fill the model's positions exactly, each row by itself."""
    limits = [POSITIONS - 60, POSITIONS - 33, POSITIONS - 4, 0, 2]
    prompts = [[5 + n % 50 for n in range(size)] for size in (60, 33, 4, POSITIONS, 50)]
    together = sample(llama, prompts, limits, temperature=1e-4)
    alone = [
        sample(llama, [prompt], [limit], temperature=1e-4)[0]
        for prompt, limit in zip(prompts, limits, strict=True)
    ]
    assert together == alone
    assert together[3] == []
    assert any(together)


def test_prompts_that_fit_all_together_are_read_whole(llama, monkeypatch):
    seen, contexts = [], TransformersDecoder.open

    def spy(decoder, prompts, **settings):
        seen.append((sorted(map(list, prompts)), settings["prompt_columns"]))
        return contexts(decoder, prompts, **settings)

    monkeypatch.setattr(TransformersDecoder, "open", spy)
    prompts = random_prompts(20)
    sample(llama, prompts, [1, *[NEW] * 19])
    assert seen == [(sorted(prompts), max(map(len, prompts)))]


@pytest.mark.parametrize("limit", [5, 64, 65])
def test_a_prompt_too_long_for_its_own_limit_is_refused(llama, limit):
    with pytest.raises(ValueError, match="within 64 tokens"):
        sample(llama, [[5] * 60, [5]], [limit, 1])


@pytest.mark.parametrize(
    ("more", "limit"),
    [
        ({"sliding_window": 8}, 64),  # a mask of some layers, no bound of a row
        ({"attention_chunk_size": 8}, 8),
        ({"rope_parameters": {"a": {"rope_type": "longrope"} | {_ORIGINAL: 32}}}, 32),
        ({"max_position_embeddings": None}, None),
    ],
)
def test_a_row_may_be_as_long_as_its_logits_are_its_own(more, limit):
    assert attention_limit(SimpleNamespace(**{"max_position_embeddings": 64} | more)) == limit


PREFIXES = [[5, 6, 7, 8, 9], [5, 6, 40], [5, 6, 7, 8, 9]]


def prompts_of_templates():
    return [
        [5, 6, 7, 8, 9, 2, 3],
        [3, 4],
        [5, 6, 7, 8, 9],  # nothing but the prefix
        [5, 6, 40, 9, 9, 9],
        [5, 6, 7, 8, 9, *[4] * 7],
        [5, 6, 41],
        [5, 6, 40, 2],
    ]


def test_shared_prefixes_change_no_logit_but_for_rounding(model):
    prompts = prompts_of_templates()
    plain, shared = packed(model, prompts), packed(model, prompts, public_prefixes=PREFIXES)
    for step in range(4):
        tokens = torch.full((len(prompts),), 7 + step)
        generated = torch.full((len(prompts),), step)
        expected = plain.next_logits(tokens, generated)
        assert torch.allclose(shared.next_logits(tokens, generated), expected, atol=SLACK)


def test_a_row_with_a_shared_prefix_does_not_depend_on_mates(llama):
    prompts = prompts_of_templates()

    def first(own):
        contexts = packed(llama, own, public_prefixes=PREFIXES)
        zeros = torch.zeros(len(own), dtype=torch.long)
        return contexts.next_logits(zeros, zeros)

    alone = first(prompts[:1])[0]
    assert torch.equal(first(prompts)[0], alone)
    assert torch.equal(first(prompts[::-1])[-1], alone)


@pytest.mark.parametrize(
    ("prompts", "prefixes", "passes"),
    [
        ([[2, 3]] * 5, (), [(4, COLUMNS)] * 2),
        ([[2, 3]] * 4 + [[2] * COLUMNS], (), [(4, COLUMNS)] * 2),  # the longest moves no shape
        ([[*PREFIXES[0], 2]] * 6, PREFIXES, [(1, 5)] + [(4, COLUMNS - 5)] * 2),  # read once
    ],
)
def test_passes_have_public_shapes_and_read_a_shared_prefix_once(
    llama, monkeypatch, prompts, prefixes, passes
):
    seen = []
    forward = type(llama.base_model).forward

    def spy(self, *args, **kwargs):
        seen.append(tuple(kwargs["input_ids"].shape))
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(type(llama.base_model), "forward", spy)
    packed(llama, prompts, public_prefixes=prefixes, rows_per_prefill=4)
    assert seen == passes


def test_every_row_of_a_prefill_of_one_column_has_a_mask(llama, monkeypatch):
    """The kernel reads the mask of its row where that would lie, whatever else lies there."""

    def attend(query, key, value, mask, scaling, _softcap):
        assert mask.shape == (len(query), 1, 1, key.shape[2])
        stock = torch.nn.functional.scaled_dot_product_attention
        return stock(query, key, value, mask, scale=scaling, enable_gqa=True)

    computes = lambda query, _value: query.shape[2] == 1  # noqa: E731
    monkeypatch.setattr(cached_attention, "_fits_the_kernel", computes)
    monkeypatch.setattr(cuda_kernels, "attend", attend)
    prompts = [[*PREFIXES[0], token] for token in (2, 3)]
    contexts = TransformersDecoder(llama).open(
        prompts, prompt_columns=6, max_new_tokens=NEW, public_prefixes=PREFIXES
    )
    zeros = torch.zeros(2, dtype=torch.long)
    for prompt, logits in zip(prompts, contexts.next_logits(zeros, zeros), strict=True):
        assert torch.allclose(logits, plain_logits(llama, prompt), atol=SLACK)


def test_each_prompt_takes_the_longest_prefix_it_begins_with():
    members = prefix_groups(prompts_of_templates(), [[5, 6], *PREFIXES])
    assert members == {(5, 6, 7, 8, 9): [0, 2, 4], (5, 6, 40): [3, 6], (5, 6): [5], (): [1]}
    assert prefix_groups([], PREFIXES) == {}


def test_a_public_prefix_ends_where_examples_may_join_the_template():
    def prompt_of(example):  # characters in pairs: the template's last one joins the example's
        text = "Write a note like: " + example + "."
        return [hash(text[start : start + 2]) for start in range(0, len(text), 2)]

    assert public_prefix(prompt_of) == prompt_of("anything")[:9]
    assert public_prefix(lambda example: [ord(letter) for letter in example]) == []


def test_a_pass_that_cannot_be_captured_runs_as_it_is(monkeypatch):
    def refuse(*_):
        raise RuntimeError("operation not permitted when stream is capturing")

    def add(tokens, columns, visible):
        return tokens + columns + visible

    passes = CapturedPasses()
    monkeypatch.setattr(CapturedPasses, "_capture", refuse)
    for _ in range(2):
        assert int(passes(add, torch.tensor([1]), torch.tensor([2]), 3)) == 6
    assert passes.refused == "RuntimeError"


@pytest.mark.parametrize(
    ("config", "rows", "columns", "expected"),
    [
        (LLAMA, 21, 540, 2 * 2 * 2 * 8 * 2 * 32 * 576),
        (GPT2Config(n_embd=32, n_layer=2, n_head=4), 16, 64, 2 * 2 * 4 * 8 * 2 * 16 * 64),
    ],
)
def test_keys_and_values_are_counted_as_they_are_filled_up(config, rows, columns, expected):
    assert memory.cache_bytes(config, rows, columns, torch.bfloat16) == expected


def test_contexts_beyond_free_memory_are_refused_with_what_fits(llama, monkeypatch):
    taken = memory.peak_bytes(llama.config, 64, 20, 0, torch.float32, "cpu")
    monkeypatch.setattr("dpsynth_assets.models.language_model.free_bytes", lambda _: taken * 1.1)
    own = TransformersDecoder(llama)
    assert own.rows_at_once(64, 20) == own.rows_at_once(1000, 20) == 64
    own.require_groups([(64, 20)])
    with pytest.raises(ValueError, match=r"for 1000 contexts of 20 tokens, .* 64 contexts"):
        own.require_groups([(1000, 20)])
