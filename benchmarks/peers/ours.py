"""Our side: the product's loop and mechanisms on the prompts and the clip that a peer recorded.

Timed: prompts to token ids, prefill, and every token, as on the peer's side. Some documents are
written in the peer's way, one after another, and then all in one pass, which is the product's. The
instructions before the private text are public and the same in every prompt: they are read once.
A third argument names another decoder than transformers, `exact` or `vllm`: all in one pass.
"""

import json
import sys

import torch
from common import BATCH, MODEL, TOKENS, WORK, Clock

from dpsynth_assets.methods.private_prediction.aggregates import MeanTokens, TokensBehindTest
from dpsynth_assets.methods.private_prediction.loop import (
    GenerationRules,
    TokenSelector,
    generate_documents,
)
from dpsynth_assets.models.decoding import public_prefix
from dpsynth_assets.privacy.batch_terms import BatchTerms
from dpsynth_assets.privacy.difference_clipping import DifferenceTokenMechanism
from dpsynth_assets.privacy.guarantees import NeighboringRelation
from dpsynth_assets.privacy.sparse_vector import PublicTokenTest
from dpsynth_assets.privacy.token_selection import MeanTokenMechanism, PrivateTokenMeter

PEER, DECODER = [*sys.argv[2:], "transformers"][:2]
NOISE, THRESHOLD, TOP_K = 2.0, 0.7, 100
NO_END = -1
ALONE = 4  # documents written one after another


def main() -> None:
    from transformers import AutoTokenizer

    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    model = opened()
    inputs = json.loads((WORK / f"{PEER}.inputs.json").read_text())
    batches = inputs["batches"]
    instructions = template(batches[0][0])
    cases = [("one", 1, ALONE), ("all", len(batches), len(batches))]
    if DECODER != "transformers":
        cases = [(DECODER, len(batches), len(batches))]
    for name, together, count in cases:
        clock, tokens = Clock(), 0
        for first in clock(range(0, count, together)):
            ids = [tokenizer(batch)["input_ids"] for batch in batches[first : first + together]]
            prefix = public_prefix(lambda text: tokenizer(instructions + text)["input_ids"])
            tokens += decode(model, ids, prefix, inputs["clip_bound"], clock)
        clock.save(f"{PEER}.ours.{name}", tokens, together)


def opened():
    """Opens the decoder that is timed."""
    from dpsynth_assets.models.decoding import open_decoder
    from dpsynth_assets.models.language_model import load_language_model

    language_model = load_language_model(MODEL, dtype="float32")
    if DECODER != "vllm":
        return open_decoder(DECODER, language_model)
    from dpsynth_assets.models.vllm_decoder.decoder import VllmDecoder

    return VllmDecoder(language_model, cache_gib=2.0, most_rows=1024)


def template(prompt: str) -> str:
    """What stands before the private text in a prompt: the peer's public instructions."""
    texts = json.loads((WORK / "texts.json").read_text())
    return prompt[: next(prompt.index(text) for text in texts if text in prompt)]


def decode(
    model, ids: list[list[list[int]]], prefix: list[int], clip_bound: float, clock: Clock
) -> int:
    """Writes one document a batch; the last prompt of each batch is the public one."""
    rules = GenerationRules(
        tokens_per_batch=TOKENS,
        max_document_tokens=TOKENS,
        min_tokens_for_new_document=1,
        end_token_id=NO_END,
        pad_token_id=1,
        prompt_columns=max(len(prompt) for batch in ids for prompt in batch),
        max_tokens_per_batch=TOKENS,
    )
    select = {"invink": difference_selector, "amin": svt_selector}[PEER](len(ids), clip_bound)
    private, public = [batch[:-1] for batch in ids], [batch[-1] for batch in ids]
    documents = generate_documents(
        model,
        private,
        select,
        rules,
        lambda *_: clock.tick(),
        public_prompts=public,
        public_prefixes=[prefix],
    )
    return sum(len(document.tokens) for document in documents)


TERMS = BatchTerms(expected_batch_size=BATCH - 1, relation=NeighboringRelation.ADD_REMOVE)


def settings(clip_bound: float) -> dict:
    return {
        "clip_bound": clip_bound,
        "temperature": 1.0,
        "batch": TERMS,
    }


def difference_selector(batches: int, clip_bound: float) -> TokenSelector:
    mechanism = DifferenceTokenMechanism(**settings(clip_bound), top_k=TOP_K)
    meter = PrivateTokenMeter(TOKENS, batches)
    return MeanTokens(tokens=TOKENS, mechanism=mechanism).opened(meter)


def svt_selector(batches: int, clip_bound: float) -> TokenSelector:
    behind_test = TokensBehindTest(
        tokens=TOKENS,
        mechanism=MeanTokenMechanism(**settings(clip_bound)),
        test=PublicTokenTest(batch=TERMS, noise_scale=NOISE, threshold=THRESHOLD),
        public_temperature=1.0,
    )
    return behind_test.opened(PrivateTokenMeter(TOKENS, batches))


if __name__ == "__main__":
    main()
