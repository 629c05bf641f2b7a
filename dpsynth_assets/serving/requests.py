"""What a client may ask, in the form of OpenAI's completions and chat completions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dpsynth_assets.methods.row_source import RowSampling, RowSource

_NEUTRAL: Mapping[str, Any] = {
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "echo": False,
    "best_of": 1,
    "logprobs": False,
    "store": False,
    "logit_bias": {},
}
"""Fields that nothing here reads, by the values under which they ask for nothing."""


class BadRequestError(ValueError):
    """A request that cannot be answered: one line, and the field at fault."""

    def __init__(self, message: str, field: str) -> None:
        """Keeps the field beside the line."""
        super().__init__(message)
        self.field = field


_LEAST_TEMPERATURE, _LEAST_TOP_P = 0.01, 0.001
"""Below these, float32 logits overflow or no token is left. A temperature of 0 is no division."""
_MOST = 1_000_000
_LONGEST_NAME = 60

_Count = Annotated[int, Field(ge=1, le=_MOST)]


class _Asked(BaseModel):
    model_config = ConfigDict(extra="forbid")

    model: str
    n: _Count = 1
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=_LEAST_TOP_P, le=1)] | None = None
    max_tokens: _Count | None = None
    stream: bool = False
    stream_options: dict[str, Any] | None = None
    user: str | None = None


class _Completion(_Asked):
    prompt: str | Annotated[list[str], Field(min_length=1)] = ""


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid")

    role: Literal["user"]
    content: str


class _Chat(_Asked):
    messages: Annotated[list[_Message], Field(min_length=1, max_length=1)]
    max_completion_tokens: _Count | None = None


@dataclass(frozen=True, kw_only=True)
class RowRequest:
    """A request, read.

    Attributes:
        model: Name of the artifact.
        prompts: Labels in words, in order.
        rows: Rows of each label.
        sampling: How tokens are drawn.
        stream: Whether rows come as they are written.
        with_usage: Whether a stream ends with its number of tokens.
        chat: Whether the answer is a chat completion.
    """

    model: str
    prompts: tuple[str, ...]
    rows: int
    sampling: RowSampling
    stream: bool
    with_usage: bool
    chat: bool

    def labels(self, source: RowSource, most_rows: int) -> list[int]:
        """Places of the labels, one for each row.

        Args:
            source: The open artifact.
            most_rows: Rows that one request may ask for.

        Raises:
            BadRequestError: A label is unknown, or rows are too many, or too long.
        """
        where = "messages" if self.chat else "prompt"
        for prompt in self.prompts:
            if prompt not in source.labels:
                known = ", ".join(map(repr, source.labels))
                raise BadRequestError(
                    f"{where}: expected one of the labels ({known}), got another text. A request "
                    "names a label; it is no prompt.",
                    where,
                )
        if len(self.prompts) * self.rows > most_rows:
            raise BadRequestError(
                f"n: expected at most {most_rows} rows in a request, got "
                f"{len(self.prompts) * self.rows}. Ask several times.",
                "n",
            )
        longest = self.sampling.max_new_tokens
        if longest is not None and longest > source.longest:
            raise BadRequestError(
                f"max_tokens: expected at most {source.longest}, got {longest}.", "max_tokens"
            )
        places = [source.labels.index(prompt) for prompt in self.prompts]
        return [place for place in places for _ in range(self.rows)]


def read_request(document: Any, *, chat: bool) -> RowRequest:
    """Reads the body of a request.

    Raises:
        BadRequestError: A field is missing, wrong, or asks for what is not done here. The line
            names the field and never quotes its value.
    """
    if not isinstance(document, dict):
        raise BadRequestError("Expected a JSON object, got something else.", "body")
    asked = {k: v for k, v in document.items() if v is not None and not _asks_nothing(k, v)}
    try:
        found: _Chat | _Completion = (_Chat if chat else _Completion).model_validate(asked)
    except ValidationError as error:
        raise _bad(error.errors(include_input=False, include_url=False)[0]) from None
    if 0 < (found.temperature or 0) < _LEAST_TEMPERATURE:
        line = f"temperature: expected 0, or {_LEAST_TEMPERATURE} and more, got less."
        raise BadRequestError(line, "temperature")
    longest = found.max_tokens
    if isinstance(found, _Chat):
        prompts: Sequence[str] = [found.messages[0].content]
        longest = found.max_completion_tokens or longest
    else:
        prompts = [found.prompt] if isinstance(found.prompt, str) else found.prompt
    return RowRequest(
        model=found.model,
        prompts=tuple(prompts),
        rows=found.n,
        sampling=RowSampling(
            temperature=found.temperature, top_p=found.top_p, max_new_tokens=longest
        ),
        stream=found.stream,
        with_usage=bool((found.stream_options or {}).get("include_usage")),
        chat=chat,
    )


def _asks_nothing(name: str, value: Any) -> bool:
    return name in _NEUTRAL and value == _NEUTRAL[name]


def _bad(problem: Mapping[str, Any]) -> BadRequestError:
    field = ".".join(map(str, problem["loc"]))
    if not (field.isprintable() and 0 < len(field) <= _LONGEST_NAME):
        field = "body"
    if problem["type"] == "extra_forbidden":
        return BadRequestError(f"{field}: expected no such field: it changes nothing here.", field)
    return BadRequestError(f"{field}: {problem['msg']}.", field)
