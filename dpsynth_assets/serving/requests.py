"""What a client may ask, in the form of OpenAI's completions and chat completions."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dpsynth_assets.methods.capabilities import RowSampling, RowSource

_NEUTRAL: Mapping[str, Any] = {
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "echo": False,
    "best_of": 1,
    "logprobs": False,
    "store": False,
    "logit_bias": {},
}
"""Fields that nothing here reads, by the values under which they have no effect."""


class RefusedError(RuntimeError):
    """A request that is not answered: one line for its client, the field at fault, the status."""

    def __init__(self, line: str, field: str | None = None, status: int = 400) -> None:
        """Keeps field and status beside the line."""
        super().__init__(line)
        self.field, self.status = field, status


_LEAST_TEMPERATURE, _LEAST_TOP_P = 0.01, 0.001
"""Below these, float32 logits overflow or no token is left. A temperature of 0 is no division."""
_MOST = 1_000_000
_LONGEST_NAME = 60

_Count = Annotated[int, Field(ge=1, le=_MOST)]


class RowRequest(BaseModel):
    """A request, read; see `Completion` and `Chat`.

    Attributes:
        model: Name of the artifact.
        n: Rows of each label.
        stream: Whether rows come as they are written.
    """

    model_config = ConfigDict(extra="forbid")
    is_chat: ClassVar[bool] = False

    model: str
    n: _Count = 1
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=_LEAST_TOP_P, le=1)] | None = None
    max_tokens: _Count | None = None
    stream: bool = False
    stream_options: dict[str, Any] | None = None
    user: str | None = None

    @property
    def with_usage(self) -> bool:
        """Whether a stream ends with its number of tokens."""
        return bool((self.stream_options or {}).get("include_usage"))

    @property
    def prompts(self) -> list[str]:
        """Labels in words, in order."""
        raise NotImplementedError

    @property
    def sampling(self) -> RowSampling:
        """How tokens are drawn."""
        return RowSampling(
            temperature=self.temperature, top_p=self.top_p, max_new_tokens=self.max_tokens
        )

    def labels(self, source: RowSource, most_rows: int) -> list[int]:
        """Places of the labels, one for each row.

        Args:
            source: The open artifact.
            most_rows: Rows that one request may ask for.

        Raises:
            RefusedError: A label is unknown, or rows are too many, or too long.
        """
        where = "messages" if self.is_chat else "prompt"
        if not set(self.prompts) <= set(source.labels):
            known = ", ".join(map(repr, source.labels))
            raise RefusedError(
                f"{where}: expected one of the labels ({known}), got another text. A request "
                "names a label, not a prompt.",
                where,
            )
        if (rows := len(self.prompts) * self.n) > most_rows:
            line = f"n: expected at most {most_rows} rows in a request, got {rows}."
            raise RefusedError(f"{line} Send several requests.", "n")
        longest = self.sampling.max_new_tokens
        if longest is not None and longest > source.longest:
            line = f"max_tokens: expected at most {source.longest}, got {longest}."
            raise RefusedError(line, "max_tokens")
        places = [source.labels.index(prompt) for prompt in self.prompts]
        return [place for place in places for _ in range(self.n)]


class Completion(RowRequest):
    """A completion: one label, or several."""

    prompt: str | Annotated[list[str], Field(min_length=1)] = ""

    @property
    def prompts(self) -> list[str]:
        """The labels."""
        return [self.prompt] if isinstance(self.prompt, str) else self.prompt


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid")

    role: Literal["user"]
    content: str


class Chat(RowRequest):
    """A chat completion: the user's one message is the label."""

    is_chat = True

    messages: Annotated[list[_Message], Field(min_length=1, max_length=1)]
    max_completion_tokens: _Count | None = None

    @property
    def prompts(self) -> list[str]:
        """The label."""
        return [self.messages[0].content]

    @property
    def sampling(self) -> RowSampling:
        """The same; a chat has a newer name for its longest row."""
        longest = self.max_completion_tokens or self.max_tokens
        return replace(super().sampling, max_new_tokens=longest)


def read_request(document: Any, kind: type[RowRequest]) -> RowRequest:
    """Reads the body of a request.

    Raises:
        RefusedError: A field is missing, wrong, or asks for what is not done here. The line
            names the field and never quotes its value.
    """
    if not isinstance(document, dict):
        raise RefusedError("Expected a JSON object, got something else.", "body")
    asked = {k: v for k, v in document.items() if v is not None and not _asks_nothing(k, v)}
    try:
        found = kind.model_validate(asked)
    except ValidationError as error:
        raise _bad(error.errors(include_input=False, include_url=False)[0]) from None
    if 0 < (found.temperature or 0) < _LEAST_TEMPERATURE:
        line = f"temperature: expected 0, or {_LEAST_TEMPERATURE} and more, got less."
        raise RefusedError(line, "temperature")
    return found


def _asks_nothing(name: str, value: Any) -> bool:
    return name in _NEUTRAL and value == _NEUTRAL[name]


def _bad(problem: Mapping[str, Any]) -> RefusedError:
    field = ".".join(map(str, problem["loc"]))
    if not (field.isprintable() and 0 < len(field) <= _LONGEST_NAME):
        field = "body"
    if problem["type"] == "extra_forbidden":
        return RefusedError(f"{field}: expected no such field: it has no effect here.", field)
    return RefusedError(f"{field}: {problem['msg']}.", field)
