"""Models for reconstruction tests: one that only copies, and one that frames texts by a prefix.

A language model that never repeats its prompt would pass any reconstruction test. This one has no
weights: it gives probability to what followed the last token earlier in its row, and its ten digits
have no meaning that could draw attention from repeating what the prompt holds.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from dpsynth_assets.attacks.reconstruction import PREFIX
from dpsynth_assets.models.decoding.protocol import Decoder, Reading
from dpsynth_assets.models.engines.protocol import Capability
from dpsynth_assets.models.prompt_templates import PromptedModel, PromptTemplates

if TYPE_CHECKING:
    import torch

BEGIN, END, PAD = 0, 1, 2
SPECIAL = 3
PLACES = 5
VOCABULARY = SPECIAL + 10 * PLACES
COPYING = 24.0
"""Logit of a token that always followed the last one; others have 0, special ones as much less."""


class CopyingDecoder(Decoder):
    """Gives each token that followed the last one earlier in its row its share of `copying`.

    **Source** Olsson et al. 2022, "In-context learning and induction heads": what such heads do.
    """

    copying = COPYING
    capabilities = frozenset({Capability.PRIVATE_TEXT})
    attention_limit = 8192

    def __init__(self) -> None:
        import torch

        self.device, self.dtype = torch.device("cpu"), torch.float32

    def _read(self, prompts: Sequence[Sequence[int]], reading: Reading) -> "CopyingContexts":
        del reading
        return CopyingContexts([(list(prompt), []) for prompt in prompts], self.copying)


class CopyingContexts:
    """Prompts and documents of tokens; see `Contexts`."""

    def __init__(self, rows: "list[tuple[list[int], list[int]]]", copying: float) -> None:
        """Takes a prompt and a document for each row."""
        self._rows, self._copying = rows, copying

    def __len__(self) -> int:
        """Number of contexts."""
        return len(self._rows)

    def next_logits(self, tokens: "torch.Tensor", generated: "torch.Tensor") -> "torch.Tensor":
        """Advances every row by one token."""
        import torch

        logits = torch.zeros((len(self), VOCABULARY))
        logits[:, :SPECIAL] = -COPYING
        drawn = zip(self._rows, tokens.tolist(), generated.tolist(), strict=True)
        for row, ((prompt, document), token, count) in enumerate(drawn):
            document[max(0, count - 1) :] = [token] if count else []
            text = [*prompt, *document]
            followers = [after for before, after in pairwise(text) if before == text[-1]]
            for each in followers:
                if each >= SPECIAL:
                    logits[row, each] += self._copying / len(followers)
        return logits

    def keep(self, contexts: "torch.Tensor") -> None:
        """Drops all contexts but these."""
        kept = [self._rows[row] for row in contexts.tolist()]
        self._rows = [(prompt, list(document)) for prompt, document in kept]


class CopyingModel:
    """The part of `models.language_model.LanguageModel` that private prediction needs.

    A token is a digit at one of five places of a key, so what follows it in the prompt is never
    ambiguous. Other characters have no token; begin, end and pad are never written.
    """

    name = "copying model"
    end_token_id = END
    pad_token_id = PAD
    vocabulary_size = VOCABULARY

    @property
    def model(self) -> CopyingDecoder:
        """It decodes by itself."""
        return CopyingDecoder()

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
