"""Laws of masked infilling: what stays, what is written anew, and which filling is kept."""

import numpy as np
import pytest
from mailboxes import public_rows

from dpsynth_assets.methods.evolution import AugPe
from dpsynth_assets.methods.evolution.apis import open_api
from dpsynth_assets.methods.evolution.causal_infilling import (
    after_scores,
    drawn_by_score,
    open_gap,
)
from dpsynth_assets.methods.evolution.infilling import InfillingApi, InfillingError
from dpsynth_assets.methods.evolution.masked_models import open_masked_model, with_spans_masked
from dpsynth_assets.methods.evolution.public_model_api import PublicModelApi
from dpsynth_assets_tests.methods.evolution.conftest import make_config, make_public, make_terms

WORDS = [f"w{number}" for number in range(40)]
TEXTS = [" ".join(WORDS[:12]), " ".join(WORDS[5:30]), "w1"]
LABELS = ["x"] * len(TEXTS)


def infilling(**changes):
    return make_config(**{"variation": "infill", "max_new_tokens": 24, **changes})


# ------------------------------------------------------------- the public language model fills in


@pytest.fixture
def causal(model):
    public = make_public()
    object.__setattr__(public, "language_model", model)
    return open_api(infilling(infilling_proposals=3), make_terms(), public)


def test_the_public_model_fills_gaps_where_no_other_is_named(causal):
    assert isinstance(causal, InfillingApi)
    assert len(causal.random(["x", "y"], seed=1)) == 2


def test_what_stands_before_and_after_the_gap_stays(model, causal):
    text = public_rows(3, seed=1)[2]["text"]
    ids = model.encode(text)[:24]
    for seed, varied in enumerate(causal.vary([text] * 8, ["x"] * 8, degree=0.3, seed=3)):
        new = model.encode(varied)
        same = sum(a == b for a, b in zip(new, ids, strict=False))
        same += sum(a == b for a, b in zip(reversed(new), reversed(ids), strict=False))
        assert same >= 0.5 * len(ids), seed
    assert len(set(causal.vary([text] * 8, ["x"] * 8, degree=0.9, seed=3))) > 4


def test_a_text_is_filled_alike_whatever_the_other_texts_are(causal):
    texts = [row["text"] for row in public_rows(4, seed=2)]
    together = causal.vary([*texts, ""], ["x"] * 5, degree=0.5, seed=4)
    assert causal.vary(texts[:2], ["x"] * 2, degree=0.5, seed=4) == together[:2]


@pytest.mark.parametrize("share", [0.0, 0.3, 0.8, 1.0])
@pytest.mark.parametrize("length", [0, 1, 2, 17, 24])
def test_a_gap_takes_its_share_and_leaves_room_for_a_filling(share, length):
    ids = list(range(length))
    for seed in range(20):
        gap = open_gap(ids, share, np.random.default_rng(seed), 24)
        taken = length - len(gap.before) - len(gap.after)
        assert taken == min(length, max(1, round(share * length)))
        assert ids[: len(gap.before)] == gap.before
        assert ids[length - len(gap.after) :] == gap.after
        assert 1 <= gap.limit <= 24 - len(gap.before) - len(gap.after)


def test_scores_are_those_of_the_model_token_by_token(model):
    import torch

    contexts, after = [[5, 6, 7], [9], [5, 6]], [[8, 9], [10, 11, 12, 13], []]
    found = after_scores(model, contexts, after)
    for context, following, score in zip(contexts, after, found, strict=True):
        expected = 0.0
        for place, token in enumerate(following):
            ids = torch.tensor([[*context, *following[:place]]])
            with torch.inference_mode():
                logs = torch.log_softmax(model.model(input_ids=ids).logits[0, -1].float(), -1)
            expected += float(logs[token])
        assert score == pytest.approx(expected, abs=1e-4)


def test_a_filling_is_kept_in_proportion_to_what_follows_it():
    scores = np.tile(np.log([0.1, 0.2, 0.7]), (20_000, 1)) - 1000.0
    shares = np.bincount(drawn_by_score(scores, seed=0), minlength=3) / len(scores)
    assert shares == pytest.approx([0.1, 0.2, 0.7], abs=0.015)
    assert drawn_by_score(np.array([[-np.inf, 0.0]]), seed=1).tolist() == [1]


# ------------------------------------------------------------------- a model trained to fill in


def word_tokenizer(folder, **special):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    names = {"pad_token": "<pad>", "unk_token": "<unk>", **special}
    vocabulary = {word: place for place, word in enumerate([*names.values(), *WORDS])}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, **names)
    tokenizer.save_pretrained(folder)
    return tokenizer


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    import torch
    from transformers import BertConfig, BertForMaskedLM

    folder = tmp_path_factory.mktemp("bert")
    tokenizer = word_tokenizer(folder, mask_token="<mask>")
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, max_position_embeddings=64,
    )  # fmt: skip
    BertForMaskedLM(config).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def bart(tmp_path_factory):
    import torch
    from transformers import BartConfig, BartForConditionalGeneration

    folder = tmp_path_factory.mktemp("bart")
    tokenizer = word_tokenizer(folder, mask_token="<mask>", bos_token="<s>", eos_token="</s>")
    ends = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id")}
    torch.manual_seed(0)
    config = BartConfig(
        vocab_size=len(tokenizer), d_model=16, encoder_layers=1, decoder_layers=1,
        encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=16,
        decoder_ffn_dim=16, max_position_embeddings=64, pad_token_id=tokenizer.pad_token_id,
        decoder_start_token_id=tokenizer.eos_token_id, **ends,
    )  # fmt: skip
    BartForConditionalGeneration(config).save_pretrained(folder)
    return str(folder)


def filler(source, **changes):
    return open_masked_model(source, infilling(infilling_model=source, **changes), "cpu")


def test_a_masked_language_model_writes_the_blanked_words_alone(bert):
    shares = np.array([0.25, 0.5, 1.0])
    filled = filler(bert).fill(TEXTS, LABELS, shares, seed=1)
    for old, new, share in zip(TEXTS, filled, shares.tolist(), strict=True):
        before, after = old.split()[:26], new.split()
        assert len(after) == len(before)
        changed = sum(a != b for a, b in zip(before, after, strict=True))
        assert changed <= round(share * len(before))
        assert set(after) <= set(WORDS)  # no mask is left, and no special token is written
    assert filled != TEXTS


def test_a_denoising_model_writes_the_whole_text_within_the_limit(bart):
    filled = filler(bart).fill(TEXTS, LABELS, np.full(3, 0.5), seed=1)
    for text in filled:
        assert len(text.split()) <= 26
        assert set(text.split()) <= {*WORDS, "<unk>"}
    assert filled == filler(bart).fill(TEXTS, LABELS, np.full(3, 0.5), seed=1)


@pytest.mark.parametrize("kind", ["bert", "bart"])
def test_rows_are_filled_alike_in_any_company(kind, request):
    source = request.getfixturevalue(kind)
    together = filler(source).fill(TEXTS, LABELS, np.full(3, 0.5), seed=2)
    alone = filler(source, rows_per_forward=1).fill(TEXTS, LABELS, np.full(3, 0.5), seed=2)
    assert alone == together
    assert filler(source).fill(["", " "], ["x", "x"], np.ones(2), seed=2) == ["", " "]


def test_a_named_model_varies_and_the_public_model_begins(bert, model):
    public = make_public()
    object.__setattr__(public, "language_model", model)
    told = []
    api = open_api(infilling(infilling_model=bert), make_terms(), public)
    varied = api.vary(TEXTS, LABELS, degree=0.5, seed=1, progress=told.append)
    assert [len(text.split()) for text in varied] == [12, 25, 1]
    assert told[-1] == 1.0
    assert isinstance(PublicModelApi(model, {}, make_config()), PublicModelApi)


@pytest.mark.parametrize("share", [0.0, 0.2, 0.6, 1.0])
def test_spans_hide_their_share_behind_one_mask_each(share):
    ids = np.array([1, *range(10, 30), 2])
    content = ids >= 10
    for seed in range(30):
        masked = with_spans_masked(ids, content, share, np.random.default_rng(seed), 99)
        left = masked[masked != 99]
        assert len(ids) - len(left) == max(1, round(share * 20))
        assert left.tolist() == [token for token in ids.tolist() if token in set(left.tolist())]
        assert not ((masked[1:] == 99) & (masked[:-1] == 99)).any()
        assert (masked[0], masked[-1]) == (1, 2)


# ---------------------------------------------------------------------------------- settings


def test_a_model_without_a_mask_is_refused(tmp_path):
    from transformers import BertConfig, BertForMaskedLM

    tokenizer = word_tokenizer(tmp_path)
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=8, num_hidden_layers=1, num_attention_heads=1,
        intermediate_size=8,
    )  # fmt: skip
    BertForMaskedLM(config).save_pretrained(tmp_path)
    with pytest.raises(InfillingError, match="mask token"):
        filler(str(tmp_path))


def test_what_cannot_be_loaded_is_told_in_one_line(tmp_path):
    with pytest.raises(InfillingError, match="hub id"):
        filler(str(tmp_path))
    refused = AugPe(infilling(infilling_model="/no/such/model"), make_terms()).refusal(1.0)
    assert "/no/such/model" in refused
    assert AugPe(infilling(infilling_model="google-bert/tiny"), make_terms()).refusal(1.0) is None
    assert AugPe(infilling(), make_terms()).refusal(1.0) is None


@pytest.mark.parametrize(
    "changes",
    [{"variation": "prefix", "infilling_model": "a/b"}, {"infilling_proposals": 0}],
)
def test_infilling_settings_that_do_not_fit_are_refused(changes):
    with pytest.raises(ValueError, match="validation error"):
        infilling(**changes)
