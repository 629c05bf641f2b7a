"""The language model wrapper: lazy, one-line errors, text that never yields special tokens."""

import json
import logging
import shutil

import pytest

from dpsynth_assets.models import language_model as module
from dpsynth_assets.models.language_model import (
    LanguageModel,
    LanguageModelError,
    load_language_model,
)
from dpsynth_assets.models.prompt_templates import PLAIN_PT
from dpsynth_assets_tests.tiny_models import write_tokenizer


def one_line(error):
    return "\n" not in str(error.value)


def test_the_loaded_model_names_its_format_and_tokens(toy_model):
    assert toy_model.document_format is PLAIN_PT
    assert toy_model.tokenizer.convert_ids_to_tokens(toy_model.end_token_id) == "<end>"
    assert toy_model.tokenizer.convert_ids_to_tokens(toy_model.begin_token_id) == "<begin>"
    assert toy_model.pad_token_id not in (toy_model.end_token_id, toy_model.begin_token_id)
    assert toy_model.name == "toy"


def test_the_model_is_in_evaluation_mode_without_gradients(toy_model):
    assert not toy_model.model.training
    assert not any(parameter.requires_grad for parameter in toy_model.model.parameters())


def test_any_text_round_trips(toy_model):
    text = "Grüße, 4 cafés — 漢字 \t two  spaces\nnew line"
    assert toy_model.decode(toy_model.encode(text)) == text


def test_the_end_token_written_in_a_text_stays_text(toy_model):
    ids = toy_model.encode("sneaky <end> and <begin>")
    assert toy_model.end_token_id not in ids
    assert toy_model.begin_token_id not in ids
    assert toy_model.decode(ids) == "sneaky <end> and <begin>"


def test_a_prompt_continued_by_a_document_reads_back(toy_model):
    prompt = toy_model.prompt_ids("Care", ["one example"], 50)
    opening = toy_model.prompt_ids("Care", [], 50)[1:]
    assert prompt[-len(opening) :] == opening
    written = [*toy_model.encode("the next one"), toy_model.end_token_id]
    assert toy_model.read_text(written) == ("the next one", True)
    assert toy_model.read_text(written[:-1]) == ("the next one", False)


def test_a_text_beyond_the_models_length_leaves_no_line_in_a_log(tmp_path, monkeypatch):
    from transformers import PreTrainedTokenizerFast

    write_tokenizer(tmp_path, ["a public text"], 300)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tmp_path, model_max_length=8)
    monkeypatch.setattr(LanguageModel, "tokenizer", tokenizer)
    told = []
    monkeypatch.setattr(logging.Logger, "handle", lambda _, record: told.append(record))
    model = LanguageModel(source=str(tmp_path))
    assert model.encode_all(["one private text of many tokens"]) == [
        model.encode("one private text of many tokens")
    ]
    assert told == []


def test_weights_are_read_at_first_use_only(toy_folder, monkeypatch):
    loaded = load_language_model(toy_folder, device="cpu")
    assert "model" not in vars(loaded)
    assert loaded.encode("a")
    assert "model" not in vars(loaded)


@pytest.mark.parametrize("name", ["nowhere", "."])
def test_a_folder_without_a_model_is_one_line_with_a_remedy(tmp_path, name):
    with pytest.raises(LanguageModelError, match=r"found no config\.json; materialise") as error:
        load_language_model(tmp_path / name)
    assert one_line(error)


@pytest.mark.parametrize("name", ["nobody/no-such-model", "no-such-model"])
def test_an_unknown_hub_id_offline_is_one_line_with_a_remedy(monkeypatch, name):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(LanguageModelError, match="set HF_HUB_OFFLINE=0") as error:
        load_language_model(name)
    assert one_line(error)


def test_a_folder_without_weights_is_one_line(toy_folder, tmp_path):
    copy = shutil.copytree(toy_folder, tmp_path / "copy")
    (copy / "model.safetensors").unlink()
    with pytest.raises(LanguageModelError, match="Restore the missing file") as error:
        _ = load_language_model(copy, device="cpu").model
    assert one_line(error)


def test_too_little_memory_says_how_much_is_needed(toy_folder, monkeypatch):
    monkeypatch.setattr(module, "free_bytes", lambda _device: 1000)
    with pytest.raises(LanguageModelError, match=r"needs .* GiB on cpu.*take a smaller") as error:
        _ = load_language_model(toy_folder, device="cpu").model
    assert one_line(error)


@pytest.mark.parametrize(("device", "dtype"), [("cpu", "float32"), ("cuda:0", "bfloat16")])
def test_dtype_auto_is_settled_at_opening(toy_folder, tmp_path, device, dtype):
    copy = shutil.copytree(toy_folder, tmp_path / "copy")
    config = json.loads((copy / "config.json").read_text()) | {"dtype": "bfloat16"}
    (copy / "config.json").write_text(json.dumps(config))
    assert load_language_model(copy, dtype="auto", device=device).dtype == dtype


def test_an_unknown_dtype_is_refused(toy_folder):
    with pytest.raises(LanguageModelError, match="must be one of float32"):
        load_language_model(toy_folder, dtype="int4")


def test_remote_code_is_never_run(toy_folder, tmp_path):
    copy = shutil.copytree(toy_folder, tmp_path / "copy")
    config = json.loads((copy / "config.json").read_text())
    config["model_type"] = "unknown-architecture"
    config["auto_map"] = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}
    (copy / "config.json").write_text(json.dumps(config))
    (copy / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Config: ...\n")
    with pytest.raises(LanguageModelError):
        load_language_model(copy, device="cpu")
    assert not (tmp_path / "ran").exists()


def test_many_texts_are_encoded_as_each_alone(toy_model):
    texts = ["a letter", "", f"it ends {toy_model.tokenizer.eos_token} here", "ünïcode ☕"]
    assert toy_model.encode_all(texts) == [toy_model.encode(text) for text in texts]
    assert toy_model.encode_all([]) == []
