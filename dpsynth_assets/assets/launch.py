"""Choices of a person who launches a release: its name, and how many free rows."""

import zlib

import dagster as dg
from pydantic import Field

from dpsynth_assets.tags import RELEASE

DEFAULT_RELEASE = "1"


class ReleaseConfig(dg.Config):
    """What a person may choose at launch; ε and δ are fixed by the dataset file."""

    release: str = Field(
        default="",
        description=(
            "Name of the release. The same name under the same dataset file never pays twice. A "
            "new name draws afresh and pays, and so does the same name once ε, labels, public "
            "counts, the version of the source or a setting that the release depends on was "
            "edited: the run's log then says what was edited. Empty: the run's tag "
            '`dpsynth/release`, else "1".'
        ),
    )


class CorpusConfig(ReleaseConfig):
    """What a person may choose where rows are free, whatever their number."""

    rows: int = Field(
        default=0,
        ge=0,
        le=100_000_000,
        description="Rows to write; 0: as many as the dataset file says. Asking for more never "
        "pays again.",
    )


def release_name(context: dg.AssetExecutionContext, config: ReleaseConfig) -> str:
    """The release a run asks for: Launchpad, then run tag, then the first release.

    Raises:
        dg.Failure: The name cannot be told from another one by looking at it.
    """
    name = config.release or context.run.tags.get(RELEASE, "") or DEFAULT_RELEASE
    if (problem := name_problem(name)) is not None:
        raise dg.Failure(description=problem, allow_retries=False)
    return name


def name_problem(name: str) -> str | None:
    """Says why a release cannot be called so: a name that looks like a paid one would pay again."""
    if name == name.strip() and name.isprintable():
        return None
    return (
        "Expected a name of a release without blanks at its ends and without invisible "
        f"characters, got {name!a}. Write the name again: another name is another release."
    )


def release_seed(release: str) -> int:
    """Seed of public randomness: another release writes other rows from the same models."""
    return zlib.crc32(release.encode())
