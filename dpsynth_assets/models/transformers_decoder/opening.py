"""Opens a decoder after a test that compares its packed logits with the model's own forward pass.

Architectures differ in masks, positions and what they keep of a row. One that our cache does not
serve is refused here, under any name, rather than decoded wrongly.
"""

from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch

from dpsynth_assets.models.decoding.protocol import Decoder, Reading, attention_limit
from dpsynth_assets.models.transformers_decoder.cached_attention import sliding_window
from dpsynth_assets.models.transformers_decoder.decoder import PackedContexts, TransformersDecoder
from dpsynth_assets.privacy.cpu import run_alone, shares_weights

if TYPE_CHECKING:
    from dpsynth_assets.datasets.public_spec import EngineSpec

_COLUMNS, _NEW, _SHARED, _RESTART = 24, 6, 4, 4
"""Tokens of a prompt, of a document and of a shared prefix; the step at which a row restarts."""
_WINDOW = 8
"""Windows are cut to this, so that rows outgrow them."""

ROUNDING = {"float32": 1e-3, "bfloat16": 0.15, "float16": 0.05}
"""What logits may be apart by number type, a root mean square in standard deviations of logits."""

_compared: "WeakKeyDictionary[Any, None]" = WeakKeyDictionary()


def opened_decoder(language_model: Any, _spec: "EngineSpec | None" = None) -> Decoder:
    """Takes the weights of a language model, which are read at the first use.

    A model that decodes by itself, as the worst case of an attack does, is taken as it is.

    Raises:
        ValueError: Its logits are not those of its own forward pass; in one line.
    """
    model = language_model.model
    if isinstance(model, Decoder):
        return model
    require_equal_logits(model)
    return TransformersDecoder(model)


def require_equal_logits(model: Any) -> None:
    """Compares on public tokens, once a process and model: nothing is drawn from wrong logits.

    Args:
        model: transformers causal language model, in evaluation mode.

    Raises:
        ValueError: Logits differ by more than rounding, or the model does not work with our cache;
            in one line.
    """
    if model in _compared:
        return
    dtype = str(model.dtype).removeprefix("torch.")
    try:
        packed, own = compared_logits(model)
        apart = float((packed - own).square().mean().sqrt() / own.std())
        got = f"{apart:.2g}"
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - any error of a model about a cache not its own
        apart, got = float("inf"), f"a {type(error).__name__}"
    if not apart <= ROUNDING[dtype]:
        raise ValueError(
            f"Expected packed logits of {model.config.model_type} in {dtype} within "
            f"{ROUNDING[dtype]} standard deviations of transformers' own, got {got}. Declare "
            "decoder: vllm, or take another model."
        )
    _compared[model] = None


def compared_logits(model: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Decodes rows that differ in length, share a prefix, outgrow windows and begin again.

    Modules are copied over the same weights: only the copy's windows are cut.

    Returns:
        Packed logits (N, V), and the model's own without a cache; float32.
    """
    if model.device.type != "cpu":
        return _compared_logits(model)
    # Threads that share so few rows would wait for one another.
    return run_alone([partial(_compared_logits, model)], 1)[0]


def _compared_logits(model: Any) -> tuple[torch.Tensor, torch.Tensor]:
    model = shares_weights(model).eval()
    config = model.config.get_text_config()
    if sliding_window(config):
        config.sliding_window = min(config.sliding_window, _WINDOW)
    columns = min(_COLUMNS, (attention_limit(model.config) or _COLUMNS + _NEW) - _NEW)
    lengths = torch.tensor([columns, -(-columns // 2), -(-columns // 5)])
    draw = torch.Generator().manual_seed(0)
    texts = torch.randint(config.vocab_size, (len(lengths), columns + _NEW), generator=draw)
    texts[1, :_SHARED] = texts[0, :_SHARED]
    prompts = [text[:length].tolist() for text, length in zip(texts, lengths, strict=True)]
    shared = [prompts[0][:_SHARED]]
    contexts = PackedContexts(model, prompts, Reading(columns, _NEW, shared, 3, public=True))
    rows, packed, ends = torch.arange(len(lengths)), [], []
    for step in range(_NEW):
        generated = torch.tensor([step, step % _RESTART, step])
        ends.append(lengths - 1 + generated)
        packed.append(contexts.next_logits(texts[rows, ends[-1]], generated).clone())
    own = _own_logits(model, texts)
    return torch.cat(packed), torch.cat([own[rows, each] for each in ends])


def _own_logits(model: Any, texts: torch.Tensor) -> torch.Tensor:
    """Logits (R, n, V) of texts (R, n), each alone in a pass of the model as transformers has it.

    In plain attention: the stock fast one leaves out the cap on Gemma 2's scores.
    """
    model.config._attn_implementation = "eager"
    with torch.no_grad():
        passes = [model(text[None].to(model.device), use_cache=False).logits for text in texts]
    return torch.cat(passes).float()
