"""A causal language model as the methods see it: weights, tokens and a few-shot format.

Loads from a folder (any checkpoint in the transformers format) or by hub id. Tokenizer and
configuration come first; weights are read at the first use of `model`, so that an engine which
brings its own weights (vLLM) never loads them twice. Nothing here runs remote code.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from dpsynth_assets.models.prompt_templates import (
    PAPER_PT,
    PLAIN_PT,
    DocumentFormat,
    PromptedModel,
)

if TYPE_CHECKING:
    import torch

BYTES_PER_PARAMETER = {"float32": 4, "bfloat16": 2, "float16": 2}


IGNORED = -100
"""Label of a token whose loss is not counted: padding, or a prompt."""


class LanguageModelError(RuntimeError):
    """A model cannot be loaded: says what was expected, what was found and what to do."""


@dataclass(frozen=True)
class LanguageModel:
    """A causal language model with its tokenizer and document format.

    Attributes:
        source: Folder or hub id.
        dtype: `float32`, `bfloat16` or `float16`; what `auto` stands for is settled at opening.
        device: `cpu`, `cuda`, `cuda:1`, ...
        names_gpu: Whether a GPU was asked for by its name, rather than found.
    """

    source: str
    dtype: str = "float32"
    device: str = "cpu"
    names_gpu: bool = False

    @property
    def name(self) -> str:
        """Short public name: the last part of the folder or hub id."""
        return self.source.rstrip("/").rsplit("/", 1)[-1]

    @cached_property
    def config(self) -> Any:
        """The transformers configuration of the (text) model."""
        return self._whole_config.get_text_config()

    @cached_property
    def _whole_config(self) -> Any:
        """That of the checkpoint, which may read images too."""
        return _config_of(self.source)

    @cached_property
    def weight_bytes(self) -> int:
        """Bytes of the weights in `dtype`, from the configuration: none are read."""
        import torch

        with torch.device("meta"):
            skeleton = self._auto_class().from_config(self._whole_config)
        return BYTES_PER_PARAMETER[self.dtype] * sum(each.numel() for each in skeleton.parameters())

    @cached_property
    def tokenizer(self) -> Any:
        """A transformers tokenizer."""
        from transformers import AutoTokenizer

        return _load(AutoTokenizer, self.source)

    @cached_property
    def model(self) -> Any:
        """The transformers model: evaluation mode, no gradients, on `device` in `dtype`."""
        import torch

        needed, free = self.weight_bytes, free_bytes(self.device)
        if needed > free:
            least, left = f"{needed / 2**30:.1f} GiB", f", {free / 2**30:.1f} GiB are free"
            raise LanguageModelError(_memory_message(self, least, left))
        weights = _load(self._auto_class(), self.source, dtype=getattr(torch, self.dtype))
        try:
            return weights.to(self.device).eval().requires_grad_(False)
        except torch.OutOfMemoryError:
            raise LanguageModelError(_memory_message(self, "more memory", "")) from None

    def _auto_class(self) -> Any:
        """Class of transformers that reads the weights."""
        from transformers import AutoModelForCausalLM

        return AutoModelForCausalLM

    @cached_property
    def document_format(self) -> DocumentFormat:
        """How documents stand in a prompt that a dataset declares nothing of."""
        fence = self.encode(PAPER_PT.end or "")
        return PAPER_PT if len(fence) == 1 else PLAIN_PT

    @property
    def vocabulary_size(self) -> int:
        """Width V of the model's logits; may exceed the number of tokens the tokenizer knows."""
        return int(self.config.vocab_size)

    @cached_property
    def end_token_id(self) -> int:
        """The token that ends a document."""
        end = self.document_format.end
        if end is None:
            return int(self.tokenizer.eos_token_id)
        token = self.tokenizer.convert_tokens_to_ids(end)
        return self.encode(end)[0] if token in (None, self.tokenizer.unk_token_id) else int(token)

    @cached_property
    def begin_token_id(self) -> int | None:
        """The token that begins a prompt; None where the tokenizer has none."""
        token = self.tokenizer.bos_token_id
        return None if token is None else int(token)

    @cached_property
    def pad_token_id(self) -> int:
        """A token to fill rows with: the tokenizer's own, else the end token; always masked."""
        token = self.tokenizer.pad_token_id
        return self.end_token_id if token is None else int(token)

    def encode(self, text: str) -> list[int]:
        """Tokens of plain text: no begin token, and special tokens in the text stay plain text."""
        return self.encode_all([text])[0]

    def text_ids(self, text: str) -> list[int]:
        """Tokens of a text after a prompt: all of it, since no prompt of this format begins it."""
        return self.encode(text)

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """Tokens of many texts, as `encode` gives them, in one call of the tokenizer.

        **Privacy** It says nothing: transformers would log the length of a text beyond the model's.
        """
        if not texts:
            return []
        encoding = self.tokenizer(
            list(texts), add_special_tokens=False, split_special_tokens=True, verbose=False
        )
        return [list(ids) for ids in encoding["input_ids"]]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of tokens, special tokens left out."""
        return self.tokenizer.decode(
            list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )

    def prompt_ids(
        self, label_text: str, examples: Sequence[str], max_example_tokens: int
    ) -> list[int]:
        """Few-shot prompt in the model's own format; see `PromptedModel.prompt_ids`."""
        return self._documents.prompt_ids(label_text, examples, max_example_tokens)

    def read_text(self, generated: Sequence[int]) -> tuple[str, bool]:
        """Text of generated tokens and whether it ended; see `PromptedModel.read_text`."""
        return self._documents.read_text(generated)

    @cached_property
    def _documents(self) -> PromptedModel:
        return PromptedModel(self)


Model = TypeVar("Model", bound=LanguageModel)
Item = TypeVar("Item")


def load_language_model(
    path_or_id: str | Path, *, dtype: str = "float32", device: str = "auto"
) -> LanguageModel:
    """Opens a language model; weights are read at the first use of `.model`.

    Args:
        path_or_id: Folder in the transformers format, or a hub id.
        dtype: `float32`, `bfloat16`, `float16`, or `auto`: the checkpoint's own on a GPU, float32
            on a processor, where no other is taken.
        device: `auto` takes the first CUDA device if there is one, else the processor.

    Raises:
        LanguageModelError: No such folder, unknown id, no network, unknown dtype.
    """
    return opened(LanguageModel, path_or_id, dtype=dtype, device=device)


def opened(
    kind: type[Model],
    path_or_id: str | Path,
    *,
    dtype: str,
    device: str,
    artifact: str = "public/language_model",
    **fields: Any,
) -> Model:
    """Opens a model of a kind with further fields; see `load_language_model`.

    Messages name the public artifact.
    """
    source = str(path_or_id)
    _require_source(source, artifact)
    fields["names_gpu"] = device.startswith("cuda")
    if device == "auto":
        import torch

        device = "cuda" if torch.cuda.is_available() else "cpu"
    if dtype == "auto":
        dtype = _own_dtype(source) if device.startswith("cuda") else "float32"
    if dtype not in BYTES_PER_PARAMETER:
        raise LanguageModelError(
            f"Language model dtype must be one of {', '.join(BYTES_PER_PARAMETER)}, got {dtype!r}."
        )
    language_model = kind(source=source, dtype=dtype, device=device, **fields)
    _ = language_model.config, language_model.tokenizer
    return language_model


def weights_state(source: str) -> tuple[tuple[str, int, int], ...]:
    """Names, times of change and sizes of the weights in a folder; nothing of a hub id.

    Other weights in the same place are read again.
    """
    files = sorted(Path(source).glob("*.safetensors")) if Path(source).is_dir() else []
    states = [(file.name, file.stat()) for file in files]
    return tuple((name, state.st_mtime_ns, state.st_size) for name, state in states)


def _require_source(source: str, artifact: str) -> None:
    """Refuses a missing folder before the hub client turns it into a puzzling message."""
    folder = Path(source)
    looks_like_path = folder.is_absolute() or source.startswith(".") or source.count("/") > 1
    if (folder.is_dir() or looks_like_path) and not (folder / "config.json").is_file():
        raise LanguageModelError(
            f"Expected a language model in {folder}, found no config.json; materialise {artifact}, "
            "or give a folder in the transformers format or a hub id, owner/name."
        )


def _config_of(source: str) -> Any:
    from transformers import AutoConfig

    return _load(AutoConfig, source)


def _own_dtype(source: str) -> str:
    """Number type in which a checkpoint was saved; float32 where it does not say."""
    config = _config_of(source)
    saved = config.dtype or config.get_text_config().dtype or "float32"
    return str(saved).removeprefix("torch.")


def _load(auto_class: Any, source: str, **options: Any) -> Any:
    """Calls `from_pretrained` without remote code and turns its failures into one line."""
    try:
        return auto_class.from_pretrained(source, trust_remote_code=False, **options)
    except (OSError, ValueError, KeyError) as error:
        raise LanguageModelError(_load_message(source, error)) from None


def _load_message(source: str, error: Exception) -> str:
    if Path(source).is_dir():
        detail = str(error).splitlines()[0]
        return (
            f"Expected a language model in the transformers format in {source}, got: {detail} "
            "Restore the missing file or materialise the public model again."
        )
    return (
        f"Expected {source!r} on the Hugging Face hub or in its cache, got nothing; check the id, "
        "the network and, for a gated model, `hf auth login`; set HF_HUB_OFFLINE=0 where downloads "
        "are forbidden (dpsynth run, make and the image set it); or give a folder."
    )


def free_bytes(device: str) -> int:
    """Memory the device can still give, the kernel's reclaimable pages included."""
    if device.startswith("cuda"):
        import torch

        return torch.cuda.mem_get_info(device)[0]
    import psutil

    return int(psutil.virtual_memory().available)


def _memory_message(language_model: LanguageModel, needed: str, free: str) -> str:
    return (
        f"{language_model.name} in {language_model.dtype} needs {needed} on "
        f"{language_model.device}{free}; take a smaller model, dtype bfloat16 or another device."
    )


FEWEST_TOKENS = 4
"""T of a pass in training, at least: MKL rounds ten times as much in products of fewer rows."""


def padded(
    rows: Sequence[Sequence[int] | np.ndarray], filler: int, least: int = 1
) -> "torch.Tensor":
    """Pads B rows, at least one, on the right to the longest: (B, T) int64, T at least `least`."""
    import torch

    lengths = np.array([len(row) for row in rows])
    result = np.full((len(rows), max(least, int(lengths.max()))), filler, dtype=np.int64)
    result[np.arange(result.shape[1]) < lengths[:, None]] = np.concatenate(
        [np.asarray(row, dtype=np.int64) for row in rows]
    )
    return torch.from_numpy(result)


def causal_rows(
    prompts: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], pad_token_id: int
) -> "tuple[dict[str, torch.Tensor], torch.Tensor]":
    """Lays each prompt and its targets into one row of a causal model, padded on the right.

    Returns:
        Arguments of the model's forward pass, (B, T), and labels (B, T) one token ahead of them,
        `IGNORED` within the prompts.
    """
    pairs = list(zip(prompts, targets, strict=True))
    rows = [[*prompt, *target[:-1]] for prompt, target in pairs]
    labels = [[IGNORED] * (len(prompt) - 1) + list(target) for prompt, target in pairs]
    mask = padded([[1] * len(row) for row in rows], 0, FEWEST_TOKENS)
    inputs = {"input_ids": padded(rows, pad_token_id, FEWEST_TOKENS), "attention_mask": mask}
    return inputs, padded(labels, IGNORED, FEWEST_TOKENS)


def token_losses(logits: "torch.Tensor", labels: "torch.Tensor") -> "torch.Tensor":
    """Cross-entropy in nats of every token, (B, T) float32; zero where nothing is counted.

    Args:
        logits: (B, T, V).
        labels: (B, T) int64, `IGNORED` where nothing is counted.
    """
    from torch.nn.functional import cross_entropy

    flat = logits.float().flatten(0, 1)
    losses = cross_entropy(flat, labels.flatten(), ignore_index=IGNORED, reduction="none")
    return losses.view(labels.shape)


def in_parts(rows: Sequence[Item], size: int) -> list[list[Item]]:
    """Cuts rows into parts of this many, the last one shorter."""
    return [list(rows[start : start + size]) for start in range(0, len(rows), size)]


def passes_by_length(
    rows: Iterable[int], texts: Sequence[Sequence[int]], tokens: int, most: int = sys.maxsize
) -> Iterator[list[int]]:
    """Yields rows in passes, longer texts first: at most this many rows and padded tokens, or one.

    Args:
        rows: Which texts.
        texts: By row, in tokens.
        tokens: Of a pass, with what fills its rows up to the longest.
        most: Rows of a pass.
    """
    left = sorted(rows, key=lambda row: -len(texts[row]))
    while left:
        count = min(most, max(1, tokens // max(1, len(texts[left[0]]))))
        yield left[:count]
        left = left[count:]


def losses_after(
    language_model: Any, texts: Sequence[Sequence[int]], begun: int
) -> tuple[np.ndarray, np.ndarray]:
    """Losses of texts in one pass of the float weights.

    Args:
        language_model: An opened `LanguageModel`.
        texts: B texts, in tokens.
        begun: Tokens, at least one, that every text begins with and that are not counted.

    Returns:
        Sum over each text's other tokens, in nats, float64 (B,), and how many these are.
    """
    import torch

    rows = padded(texts, language_model.pad_token_id)[:, :-1].to(language_model.device)
    targets = padded([text[begun:] for text in texts], IGNORED)
    with torch.inference_mode():  # What fills a row follows its tokens: they do not see it.
        logits = language_model.model(input_ids=rows, use_cache=False).logits[:, begun - 1 :]
        losses = token_losses(logits, targets.to(logits.device)).double().cpu()
    return losses.sum(1).numpy(), (targets != IGNORED).sum(1).numpy()


def batches_by_length(
    lengths: Sequence[int], size: int, draw: np.random.Generator
) -> list[list[int]]:
    """Cuts rows in a drawn order into batches, each of rows of about one length.

    Rows are sorted within windows of 16 batches, so that little padding is computed.
    """
    order = draw.permutation(len(lengths)).tolist()
    windows = (sorted(each, key=lengths.__getitem__) for each in in_parts(order, 16 * size))
    batches = [batch for window in windows for batch in in_parts(window, size)]
    return [batches[index] for index in draw.permutation(len(batches))]


def mean_token_losses(logits: "torch.Tensor", labels: "torch.Tensor") -> "torch.Tensor":
    """Cross-entropy in nats of each example: the mean over its own tokens, zero without any.

    **Privacy** An example's loss depends on its own tokens alone: it is never divided by the number
    of tokens of the batch, so that its gradient can be clipped as one record's contribution.

    Returns:
        (B,), with gradients where the model has them.
    """
    return token_losses(logits, labels).sum(1) / (labels != IGNORED).sum(1).clamp(min=1)
