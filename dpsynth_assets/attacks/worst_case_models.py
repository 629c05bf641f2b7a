"""Models for reconstruction tests: one that only copies, and one that frames texts by a prefix.

A language model that never repeats its prompt would pass any reconstruction test. This one starts
with a hand-set copying circuit and is not trained: its ten digits have no meaning that could draw
attention from repeating what the prompt holds.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from dpsynth_assets.attacks.reconstruction import PREFIX
from dpsynth_assets.models.prompt_templates import PromptedModel, PromptTemplates

BEGIN, END, PAD = 0, 1, 2
SPECIAL = 3
PLACES = 5
WIDTH, HEAD, POSITIONS = 256, 128, 8192
ROTARY_BASE = 1e7
SEED = 0  # of public weights
COPYING = 3.0
"""Factor by which the copied token is written louder than in a model that is to be trained."""


class CopyingModel:
    """The part of `models.language_model.LanguageModel` that private prediction needs.

    A token is a digit at one of five places of a key, so what follows it in the prompt is never
    ambiguous. Other characters have no token; begin, end and pad are never written.
    """

    name = "copying model"
    end_token_id = END
    pad_token_id = PAD
    vocabulary_size = SPECIAL + 10 * PLACES

    @cached_property
    def model(self) -> Any:
        """A two-layer Llama, float32, on the processor."""
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM

        from dpsynth_assets.models.copying_start import start_with_copying

        config = LlamaConfig(
            vocab_size=self.vocabulary_size,
            hidden_size=WIDTH,
            intermediate_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=HEAD,
            max_position_embeddings=POSITIONS,
            rope_parameters={"rope_type": "default", "rope_theta": ROTARY_BASE},
            tie_word_embeddings=False,
        )
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(SEED)
            model = LlamaForCausalLM(config)
            start_with_copying(model)
            model.model.layers[1].self_attn.o_proj.weight.mul_(COPYING)
            tokens = model.model.embed_tokens.weight
            model.lm_head.weight.copy_(tokens)
            model.lm_head.weight[:SPECIAL] = -4.0 * tokens.mean(dim=0)
        return model.eval().requires_grad_(False)

    def encode(self, text: str) -> list[int]:
        """Tokens of the digits of a text, by their place in a key."""
        digits = [int(character) for character in text if character in "0123456789"]
        return [SPECIAL + 10 * (i % PLACES) + digit for i, digit in enumerate(digits)]

    def decode(self, ids: Sequence[int]) -> str:
        """Digits of tokens."""
        return "".join(str((token - SPECIAL) % 10) for token in ids if token >= SPECIAL)

    def prompt_ids(
        self, _label_text: str, examples: Sequence[str], max_example_tokens: int
    ) -> list[int]:
        """Begin token, digits and end token of each example, and the begin token of one more."""
        ids = []
        for text in examples:
            ids += [BEGIN, *self.encode(text)[:max_example_tokens], END]
        return [*ids, BEGIN]


def prefilled(language_model: Any, templates: PromptTemplates | None) -> PromptedModel:
    """Gives a model its declared prompts, or its document format, with `PREFIX` before a text."""
    if templates is not None:
        return PrefilledPrompts(language_model, templates)
    form = language_model.document_format
    return PromptedModel(language_model, form=form._replace(opening=form.opening + PREFIX))


class PrefilledPrompts(PromptedModel):
    """A model that reads and writes in declared templates, with `PREFIX` before every text.

    A text's declared start, which precedes the prefix, is left out of what is read back: that
    begins with a key.
    """

    def _written_frame(self, label_text: str, examples: int) -> list[list[int]]:
        """The declared frame: each of its parts ends where a text begins."""
        prefix = self._public_ids(PREFIX)
        return [[*part, *prefix] for part in super()._written_frame(label_text, examples)]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of a generated document's tokens: what follows `PREFIX`, without its end."""
        return super().decode(ids).removeprefix(self._templates.text_start)
