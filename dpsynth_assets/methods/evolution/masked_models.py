"""Models that were trained to fill in: masked language models and denoising encoder-decoders.

A masked language model (BERT, RoBERTa, ...) fills single tokens anywhere in a text, a few at a time
so that later ones see earlier ones. A denoising encoder-decoder (BART) reads a text whose spans are
replaced by one mask token each and writes the whole anew. Which of the two a checkpoint is, its
configuration says.

**Source** Devlin et al. 2019; Lewis et al. 2020 (text infilling: lengths of spans are Poisson of
mean 3); Ghazvininejad et al. 2019 (mask-predict), drawn instead of maximised.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dpsynth_assets.methods.evolution.config import EvolutionConfig
from dpsynth_assets.methods.evolution.infilling import InfillingError
from dpsynth_assets.methods.evolution.text_api import ShareCallback
from dpsynth_assets.models.decoding.token_draws import draw_tokens, uniforms
from dpsynth_assets.models.engines.protocol import Sampling
from dpsynth_assets.models.kept import kept

if TYPE_CHECKING:
    import torch

PASSES = 8
"""Passes in which a masked language model fills a text."""

MEAN_SPAN = 3.0
"""Mean length of a blanked span, in tokens, as BART was trained."""


def open_masked_model(source: str, config: EvolutionConfig, device: str) -> "MaskedModel":
    """Loads a model that fills in.

    Args:
        source: Folder or hub id.
        config: Lengths, sampling and rows of a pass.
        device: Where it runs.

    Raises:
        InfillingError: It cannot be loaded, or its tokenizer knows no mask.
    """
    model, tokenizer = _weights_and_tokenizer(source, device)
    if tokenizer.mask_token_id is None:
        raise InfillingError(
            f"Expected a model with a mask token for infilling_model, got {source}. Name one of "
            "the BERT or BART kind."
        )
    kind = DenoisingModel if _denoises(model.config) else MaskedLanguageModel
    return kind(model, tokenizer, config)


@kept(1)
def _weights_and_tokenizer(source: str, device: str) -> tuple[Any, Any]:
    """Loads once a process: before the charge, and not again for the rounds and rows after it."""
    from transformers import AutoConfig, AutoModelForMaskedLM, AutoModelForSeq2SeqLM, AutoTokenizer

    denoises = _denoises(_loaded(AutoConfig, source))
    tokenizer = _loaded(AutoTokenizer, source)
    weights = _loaded(AutoModelForSeq2SeqLM if denoises else AutoModelForMaskedLM, source)
    return weights.to(device).eval().requires_grad_(False), tokenizer


def _denoises(config: Any) -> bool:
    return bool(getattr(config, "is_encoder_decoder", False))


def _loaded(auto_class: Any, source: str) -> Any:
    try:
        return auto_class.from_pretrained(source, trust_remote_code=False)
    except (OSError, ValueError, KeyError):
        raise InfillingError(
            f"Expected a masked language model or denoising encoder-decoder at {source}, could not "
            "load it. Give a folder in the transformers format or a hub id; HF_HUB_OFFLINE allows "
            "cached ones only."
        ) from None


class MaskedModel(ABC):
    """Batches texts of similar length; subclasses blank and fill.

    Args:
        model: transformers model, evaluation mode.
        tokenizer: Its tokenizer.
        config: Lengths, sampling and rows of a pass.
    """

    def __init__(self, model: Any, tokenizer: Any, config: EvolutionConfig) -> None:
        self._model, self._tokenizer, self._config = model, tokenizer, config

    def fill(
        self,
        texts: Sequence[str],
        labels: Sequence[str],
        shares: np.ndarray,
        *,
        seed: int,
        progress: ShareCallback | None = None,
    ) -> list[str]:
        """See `Infiller.fill`; labels are not told to the model."""
        del labels
        encoded = [self._encoded(text) for text in texts]
        rows = sorted(
            (row for row in range(len(texts)) if self._content(encoded[row]).any()),
            key=lambda row: len(encoded[row]),
        )
        written = list(texts)
        for start in range(0, len(rows), self._config.rows_per_forward):
            part = rows[start : start + self._config.rows_per_forward]
            streams = [np.random.default_rng([seed, row]) for row in part]
            filled = self._filled([encoded[row] for row in part], shares[part], streams, seed, part)
            for row, ids in zip(part, filled, strict=True):
                written[row] = self._tokenizer.decode(ids, skip_special_tokens=True).strip()
            if progress is not None:
                progress((start + len(part)) / len(rows))
        return written

    @abstractmethod
    def _filled(
        self,
        encoded: list[np.ndarray],
        shares: np.ndarray,
        streams: list[np.random.Generator],
        seed: int,
        rows: list[int],
    ) -> list[list[int]]:
        """Token ids of the variations of one batch.

        Args:
            encoded: R rows of token ids, with the special tokens around them.
            shares: (R,) shares to blank.
            streams: Public randomness of each row: what is blanked.
            seed: Public seed of the tokens drawn; row i draws from the stream (seed, i).
            rows: The rows' numbers.
        """

    def _encoded(self, text: str) -> np.ndarray:
        """(t,) token ids with special tokens, cut to what the model and the settings allow."""
        room = int(getattr(self._model.config, "max_position_embeddings", 2**20))
        longest = min(self._config.max_new_tokens + 2, room)
        encoding = self._tokenizer(text, truncation=True, max_length=longest)
        return np.asarray(encoding["input_ids"], dtype=np.int64)

    def _content(self, ids: np.ndarray) -> np.ndarray:
        """(t,) which tokens are text."""
        return ~np.isin(ids, self._tokenizer.all_special_ids)

    def _padded(self, rows: Sequence[np.ndarray]) -> "tuple[torch.Tensor, torch.Tensor]":
        """int64 (R, T) tokens and their attention mask, on the model's device."""
        import torch

        width = max(map(len, rows))
        ids = np.full((len(rows), width), self._tokenizer.pad_token_id, dtype=np.int64)
        mask = np.zeros((len(rows), width), dtype=np.int64)
        for place, row in enumerate(rows):
            ids[place, : len(row)], mask[place, : len(row)] = row, 1
        device = self._model.device
        return torch.from_numpy(ids).to(device), torch.from_numpy(mask).to(device)

    def _sampling(self) -> Sampling:
        return self._config.sampling(0, 1)


class MaskedLanguageModel(MaskedModel):
    """Blanks single tokens; fills an equal part of them in each of `PASSES` passes."""

    def _filled(
        self,
        encoded: list[np.ndarray],
        shares: np.ndarray,
        streams: list[np.random.Generator],
        seed: int,
        rows: list[int],
    ) -> list[list[int]]:
        """See `MaskedModel._filled`."""
        import torch

        ids, attention = self._padded(encoded)
        turns = self._turns(encoded, shares, streams, ids.shape[1])
        ids[torch.from_numpy(turns >= 0).to(ids.device)] = self._tokenizer.mask_token_id
        draws = torch.from_numpy(uniforms(seed, rows, ids.shape[1])).to(ids.device)
        sampling = self._sampling()
        for turn in range(PASSES):
            chosen = torch.from_numpy(turns == turn).to(ids.device)
            if chosen.any():
                with torch.inference_mode():
                    logits = self._model(input_ids=ids, attention_mask=attention).logits[chosen]
                    logits[:, self._tokenizer.all_special_ids] = -torch.inf
                    ids[chosen] = draw_tokens(logits.float(), draws[chosen], sampling)
        return [row[: len(old)].tolist() for row, old in zip(ids, encoded, strict=True)]

    def _turns(
        self,
        encoded: list[np.ndarray],
        shares: np.ndarray,
        streams: list[np.random.Generator],
        width: int,
    ) -> np.ndarray:
        """(R, T) pass in which each position is filled; -1 for those that stay."""
        turns = np.full((len(encoded), width), -1, dtype=np.int64)
        for row, (ids, share, rng) in enumerate(
            zip(encoded, shares.tolist(), streams, strict=True)
        ):
            places = np.flatnonzero(self._content(ids))
            count = min(len(places), max(1, round(share * len(places))))
            blank = rng.permutation(places)[:count]
            turns[row, blank] = np.arange(count) * PASSES // count
        return turns


class DenoisingModel(MaskedModel):
    """Replaces spans by one mask token each; the decoder writes the whole text anew."""

    def _filled(
        self,
        encoded: list[np.ndarray],
        shares: np.ndarray,
        streams: list[np.random.Generator],
        seed: int,
        rows: list[int],
    ) -> list[list[int]]:
        """See `MaskedModel._filled`."""
        import torch

        blanked = [
            with_spans_masked(ids, self._content(ids), share, rng, self._tokenizer.mask_token_id)
            for ids, share, rng in zip(encoded, shares.tolist(), streams, strict=True)
        ]
        ids, attention = self._padded(blanked)
        draws = torch.from_numpy(uniforms(seed, rows, self._config.max_new_tokens + 2))
        with torch.inference_mode():
            return self._decoded(ids, attention, draws.to(ids.device))

    def _decoded(
        self, ids: "torch.Tensor", attention: "torch.Tensor", draws: "torch.Tensor"
    ) -> list[list[int]]:
        """Draws every row's text until all have ended, at most draws.shape[1] tokens."""
        import torch

        config, sampling = self._model.config, self._sampling()
        states = self._model.get_encoder()(input_ids=ids, attention_mask=attention)
        token = torch.full_like(ids[:, :1], config.decoder_start_token_id)
        ended = torch.zeros(len(ids), dtype=torch.bool, device=ids.device)
        written, cache = [], None
        for step in range(draws.shape[1]):
            made = self._model(
                encoder_outputs=states, attention_mask=attention, decoder_input_ids=token,
                past_key_values=cache, use_cache=True,
            )  # fmt: skip
            cache, logits = made.past_key_values, made.logits[:, -1].float()
            logits[:, self._never_written] = -torch.inf
            drawn = draw_tokens(logits, draws[:, step], sampling)
            drawn = drawn.masked_fill(ended, config.eos_token_id)
            ended |= drawn == config.eos_token_id
            written.append(drawn)
            token = drawn[:, None]
            if ended.all():
                break
        return torch.stack(written, dim=1).tolist()

    @property
    def _never_written(self) -> list[int]:
        """Special tokens but those that begin and end a text."""
        config = self._model.config
        known = (config.bos_token_id, config.eos_token_id)
        return [token for token in self._tokenizer.all_special_ids if token not in known]


def with_spans_masked(
    ids: np.ndarray, content: np.ndarray, share: float, rng: np.random.Generator, mask_id: int
) -> np.ndarray:
    """Replaces spans of tokens by one mask token each.

    Args:
        ids: (t,) tokens.
        content: (t,) which of them may be blanked, at least one.
        share: Share of those to blank.
        rng: Public randomness of places and lengths.
        mask_id: The mask token.

    **Source** Lewis et al. 2020, section 2.2: span lengths are Poisson(3); here at least 1.
    """
    places = np.flatnonzero(content)
    wanted = min(len(places), max(1, round(share * len(places))))
    hidden = np.zeros(len(ids), dtype=bool)
    for start in rng.permutation(places).tolist():
        left = wanted - int(hidden.sum())
        if left <= 0:
            break
        length = min(left, max(1, int(rng.poisson(MEAN_SPAN))))
        hidden[start : start + length] |= content[start : start + length]
    first = hidden & ~np.concatenate([[False], hidden[:-1]])
    kept = np.where(first, mask_id, ids)
    return kept[~hidden | first]
