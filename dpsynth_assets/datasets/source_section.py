"""Section of a declaration that says where records lie and how their files are written."""

import codecs
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    Field,
    PrivateAttr,
    SerializerFunctionWrapHandler,
    model_serializer,
)

from dpsynth_assets.datasets.fields import Declaration, PublicWord, refuse

UTF_8 = "utf-8"
"""The encoding of a file that declares none."""

MAX_SET_ASIDE = 0.05
"""More records than one in twenty are hardly ever set aside on purpose."""

_NO_FILE_ENCODINGS = {"idna", "punycode", "unicode-escape", "raw-unicode-escape"}
_WITH_STATE = ("utf-7", "hz", "iso2022")
"""Encodings in which one record can change how all that follow are read."""


def _canonical_encoding(name: str) -> str:
    """Returns Python's own name of an encoding.

    Raises:
        PydanticCustomError: It is unknown, none of text files, or has a state.
    """
    try:
        found = codecs.lookup(name).name.replace("_", "-")
        "a".encode(found)  # Codecs that are none of text are refused here.
    except (LookupError, ValueError):
        found = ""
    if not found or found in _NO_FILE_ENCODINGS or found.startswith(_WITH_STATE):
        refuse(
            "",
            "the name of an encoding in which every character stands for itself",
            repr(name)[:80],
            "Write e.g. utf-8, cp1252, latin-1 or utf-16, or convert the file.",
        )
    return UTF_8 if found == "utf-8-sig" else found


def _field_separator(sign: str) -> str:
    """Returns a sign that can separate fields.

    Raises:
        PydanticCustomError: It is not one ASCII character, or could be part of a field.
    """
    if len(sign) != 1 or not sign.isascii() or sign.isalnum() or sign in '"\n\r\0':
        refuse(
            "",
            "one ASCII character that is no letter, digit, quotation mark or line break",
            repr(sign)[:80],
            r'Write e.g. ";", "|" or "\t".',
        )
    return sign


class SourceSpec(Declaration):
    """The source of the records."""

    path: str = Field(
        min_length=1,
        description="File, glob, folder written by Hugging Face `save_to_disk`, or hf:// address. "
        "A relative path starts at the project root or, failing that, at the YAML file's folder.",
    )
    format: Literal["auto", "csv", "jsonl", "parquet", "huggingface"] = Field(
        default="auto", description="File format; auto: by the suffix, or by a folder's content."
    )
    separator: Annotated[str, AfterValidator(_field_separator)] | None = Field(
        default=None,
        description='Character between the fields of a CSV file, e.g. ";"; none: a tab in a .tsv '
        "file, else a comma.",
    )
    encoding: Annotated[str, AfterValidator(_canonical_encoding)] = Field(
        default=UTF_8,
        description="Encoding of a CSV file, by a name that Python knows, e.g. cp1252, latin-1 or "
        "utf-16. Bytes that it does not know make only their own record unreadable.",
    )
    max_set_aside: float = Field(
        default=MAX_SET_ASIDE,
        ge=0,
        le=1,
        description="Largest share of the records, in [0, 1], that rules may set aside; more is "
        "refused before anything is charged.",
    )
    version: PublicWord = Field(
        default="1",
        description="Public name of the data's version. A new version is a new state of the same "
        "records: it does not refund budget.",
    )

    _is_found: bool = PrivateAttr(default=False)

    @property
    def is_found(self) -> bool:
        """Whether a pattern found the file: nobody has named it, and a link may lead elsewhere."""
        return self._is_found

    def with_file(self, path: str) -> Self:
        """The same source, of one file that its pattern has found."""
        found = self.model_copy(update={"path": path})
        found._is_found = True
        return found

    @model_serializer(mode="wrap")
    def _without_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leaves defaults of later fields out: declarations made before keep their identity."""
        fields: dict[str, Any] = handler(self)
        later = (("separator", None), ("encoding", UTF_8), ("max_set_aside", MAX_SET_ASIDE))
        for name, default in later:
            if fields.get(name) == default:
                fields.pop(name, None)
        return fields
