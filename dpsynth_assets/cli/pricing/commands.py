"""Commands made of settings: a dataclass names the options, a function answers from it."""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from typing import Any, cast, get_type_hints

import typer
from typer.core import TyperCommand

from dpsynth_assets.cli.pricing.options import AsJson, RecordsPerUnit, Relation
from dpsynth_assets.cli.pricing.printing import refusals, show
from dpsynth_assets.privacy.units import NeighboringRelation

Answer = tuple[dict[str, Any], str | list[str]]
"""What a command prints: keys of one JSON object, or sentences."""

START = 1
"""Value of a required setting that a command does not ask for, because it searches for it."""

_Misuse = cast("type[typer.BadParameter]", typer.BadParameter.__bases__[0])
"""Every error of a command line (an unknown option, too); typer exports only this subclass."""


class OneLineCommand(TyperCommand):
    """A command whose misuse is one line on stderr and exit code 2, as a refusal is."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parses as usual, without the usage lines before an error."""
        try:
            return super().parse_args(ctx, args)
        except _Misuse as misuse:
            typer.echo(" ".join(misuse.format_message().split()), err=True)
            raise typer.Exit(2) from None


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Public settings of a mechanism: their fields' annotations are options of its commands.

    Attributes:
        relation: Declared neighbouring relation.
        max_records_per_unit: Records one unit may contribute.
    """

    relation: Relation = NeighboringRelation.ADD_REMOVE
    max_records_per_unit: RecordsPerUnit = 1

    def facts(self, names: str) -> dict[str, Any]:
        """Lists the named settings as result keys, and whom every number protects."""
        return {name: getattr(self, name) for name in names.split()} | {
            "relation": str(self.relation),
            "max_records_per_unit": self.max_records_per_unit,
        }


def command(
    settings: type[Any], options: str
) -> Callable[[Callable[..., Answer]], Callable[..., None]]:
    """Makes a command of a function that answers from settings and from options of its own.

    Args:
        settings: Dataclass whose fields are annotated with their options.
        options: Names of all options in the order of the help; `--json` comes last. One that the
            function has as a parameter is passed to it, any other is a field of the settings.
    """
    hints = get_type_hints(settings, include_extras=True)
    defaults = {field.name: field.default for field in fields(settings)}
    required = {name: START for name, default in defaults.items() if default is MISSING}

    def parameter(name: str, own: inspect.Parameter | None) -> inspect.Parameter:
        empty = inspect.Parameter.empty
        default = defaults[name] if own is None else own.default
        return inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=empty if default is MISSING else default,
            annotation=hints[name] if own is None else own.annotation,
        )

    def made(answer: Callable[..., Answer]) -> Callable[..., None]:
        own = dict(list(inspect.signature(answer).parameters.items())[1:])

        def run(*, as_json: bool, **given: Any) -> None:
            with refusals():
                asked = {name: given.pop(name) for name in own}
                result, sentences = answer(settings(**(required | given)), **asked)
            show(result, sentences, as_json)

        parameters = [parameter(name, own.get(name)) for name in options.split()]
        parameters.append(
            inspect.Parameter(
                "as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=AsJson
            )
        )
        run.__doc__ = answer.__doc__
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        cast("Any", run).__signature__ = inspect.Signature(parameters)
        return run

    return made
