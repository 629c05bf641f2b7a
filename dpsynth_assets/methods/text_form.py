"""The form of texts that engines write: free, or records of the declared JSON schema."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from dpsynth_assets.json_records import record_check
from dpsynth_assets.models.engines import Sampling
from dpsynth_assets.models.prompt_templates import PromptTemplates

SCHEMA = "json_schema_sha256"
"""Parameter of a charge that names the schema which decoding was constrained to, if any."""


@dataclass(frozen=True)
class TextForm:
    """What every text that is written has to be.

    Attributes:
        schema: JSON schema, as JSON; None: texts are free.
        text_start: Declared beginning of every text, which stands in its prompt.
    """

    schema: str | None = None
    text_start: str = ""

    @classmethod
    def of(cls, schema: str | None, templates: PromptTemplates | None) -> "TextForm":
        """The form of texts behind prompts of such templates."""
        return cls(schema, "" if templates is None else templates.text_start)

    def constrained(self, sampling: Sampling, begun: Sequence[Sequence[int]] = ()) -> Sampling:
        """Settings by which an engine keeps to the form.

        Args:
            sampling: Settings of free texts. Stop texts are left out: a record ends by itself.
            begun: Tokens of each text that stand in its prompt already.
        """
        if self.schema is None:
            return sampling
        return replace(
            sampling,
            stop=(),
            json_schema=self.schema,
            text_start=self.text_start,
            begun=tuple(map(tuple, begun)),
        )

    def read(self, text: str) -> str:
        """The text, or "" where it is none of the form: it was cut, or an endpoint cannot do it."""
        return text if self.schema is None or _check(self.schema)(text) else ""


FREE = TextForm()
"""Free text."""


def schema_parameters(schema: str | None) -> Mapping[str, str]:
    """Names a schema: texts of another one are another release."""
    return {} if schema is None else {SCHEMA: hashlib.sha256(schema.encode()).hexdigest()}


@cache
def _check(schema: str) -> Callable[[str], bool]:
    return record_check(json.loads(schema))
