"""The form of texts that models write: whole sentences, or records of the declared JSON schema."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from dpsynth_assets.json_records import record_check
from dpsynth_assets.models.engines import Sampling
from dpsynth_assets.models.prompt_templates import PromptTemplates
from dpsynth_assets.models.row_rules import trimmed

SCHEMA = "json_schema_sha256"
"""Parameter of a charge that names the schema which decoding was constrained to, if any."""


@dataclass(frozen=True)
class TextForm:
    """What every text that is written has to be.

    Attributes:
        schema: JSON schema, as JSON; None: texts are free.
        text_start: Declared beginning of every text, which stands in its prompt.
        frames: Public words that open a text in its prompt, one a label.
    """

    schema: str | None = None
    text_start: str = ""
    frames: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, schema: str | None, templates: PromptTemplates | None, label_texts: Sequence[str] = ()
    ) -> "TextForm":
        """The form of texts behind prompts of such templates, with such words for labels."""
        if templates is None:
            return cls(schema)
        openings = (replace(templates, text_start="").opening(label) for label in label_texts)
        return cls(schema, templates.text_start, tuple(dict.fromkeys(openings)))

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

    def read(self, text: str, *, ended: bool = True) -> str:
        """The text without what is not of it (`row_rules.trimmed`).

        A text of the schema stays as it is, and is "" where it is no record: it was cut, or an
        endpoint cannot do it.

        Args:
            text: What was written.
            ended: Whether the model ended it; one that its greatest length cut off is trimmed.
        """
        if self.schema is None:
            return trimmed(text, self.frames, ended=ended)
        return text if _check(self.schema)(text) else ""


FREE = TextForm()
"""Free text behind prompts that nothing is known of."""


def schema_parameters(schema: str | None) -> Mapping[str, str]:
    """Names a schema: texts of another one are another release."""
    return {} if schema is None else {SCHEMA: hashlib.sha256(schema.encode()).hexdigest()}


@cache
def _check(schema: str) -> Callable[[str], bool]:
    return record_check(json.loads(schema))
