"""Writes bounds as decimals that never claim too much: rounded up or down, never to nearest.

A float stands for the shortest decimal that reads back as it, as JSON writes it. Every text made
here compares with that decimal exactly: ε, δ, ρ, μ and posteriors are never below it, and what is
left of a budget, a capacity or a level of noise is never above it. All arithmetic is decimal.
"""

from collections.abc import Callable
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from math import isfinite

MISSING = "–"
"""Written for a number that does not exist."""

_EXACT = Context(prec=1_200)  # every float has fewer digits, at any number of decimals used here
_GENERAL_DIGITS = 6  # what the format "g" means without a precision
_SHOWN_DIGITS = 3  # significant ones, of an ε that a person reads


def rounded_up(value: float | None, form: str = "g") -> str:
    """Writes a bound whose larger values are the safer claim: ε, δ, ρ, μ, a posterior, η.

    Args:
        value: What to write; None is written as a dash, infinity as "inf".
        form: A format of floats: "g", ".4g", ".4f", ".1e".

    Returns:
        The smallest decimal of that form that is at least `value`.

    Raises:
        ValueError: The format is none of these.
    """
    return _written(value, form, ROUND_CEILING)


def rounded_down(value: float | None, form: str = "g") -> str:
    """Writes a number whose smaller values are the safer claim: what is left, a noise level.

    Returns:
        The largest decimal of that form that is at most `value`; otherwise as `rounded_up`.
    """
    return _written(value, form, ROUND_FLOOR)


def epsilon_up(value: float | None) -> str:
    """Writes what was or may be spent, ε or a posterior, as every page and command shows it.

    Returns:
        Three significant digits, and two decimals if any: 0.0474, 0.30, 1.10, 4, 14.96.
    """
    return _shown(value, rounded_up)


def epsilon_down(value: float | None) -> str:
    """Writes what is left of a budget as every page and command shows it; see `epsilon_up`.

    Below 1e-6 it is a rest of floating-point arithmetic, which buys nothing: 0.
    """
    return "0" if value is not None and 0 < value < 1e-6 else _shown(value, rounded_down)


def declared(value: float | None) -> str:
    """Writes a declared constant as it was declared: the shortest decimal that reads back as it."""
    if value is None:
        return MISSING
    return repr(float(value)).removesuffix(".0")


def digits_that_differ(total: float, bound: float) -> int:
    """The number of decimals at which a total above a bound is seen to be above it.

    `bound` itself is written in full; 2 decimals where they suffice, 17 at most.
    """
    above, limit = _decimal(total), _decimal(bound)
    for digits in (2, 4, 8, 16):
        step = Decimal(1).scaleb(-digits)
        if limit == limit.quantize(step, context=_EXACT) and above - limit >= step / 2:
            return digits
    return 17


def _shown(value: float | None, rounded: Callable[[float | None, str], str]) -> str:
    if value is None or not isfinite(value) or abs(value) < 1:
        return _with_decimals(rounded(value, f".{_SHOWN_DIGITS}g"))
    return rounded(value, f".{_SHOWN_DIGITS - 1}f").removesuffix(".00")


def _with_decimals(text: str) -> str:
    """Writes 0.3 as 0.30, to are next to 1.10."""
    whole, point, decimals = text.partition(".")
    return text if not point or "e" in text else f"{whole}.{decimals:0<2}"


def _written(value: float | None, form: str, rounding: str) -> str:
    if value is None:
        return MISSING
    style, digits = _parsed(form)
    number = float(value)
    if number != number or number in (float("inf"), float("-inf")):
        return f"{number}"
    exact = _decimal(number)
    if style == "f":
        return f"{exact.quantize(Decimal(1).scaleb(-digits), rounding, _EXACT):f}"
    if not exact:
        return f"{0.0:{form}}"
    kept = max(1, digits) if style == "g" else digits + 1
    return _significant(Context(prec=kept, rounding=rounding).plus(exact), style, kept)


def _significant(rounded: Decimal, style: str, kept: int) -> str:
    """Writes a rounded number as Python's formats "g" and "e" would, without another rounding."""
    exponent = rounded.adjusted()
    if style == "g" and -5 < exponent < kept:
        return _without_zeros(f"{rounded:f}")
    mantissa, _, _ = f"{rounded:.{kept - 1}e}".partition("e")
    mantissa = _without_zeros(mantissa) if style == "g" else mantissa
    return f"{mantissa}e{exponent:+03d}"


def _without_zeros(text: str) -> str:
    return text.rstrip("0").rstrip(".") if "." in text else text


def _decimal(value: float) -> Decimal:
    return Decimal(repr(float(value)))


def _parsed(form: str) -> tuple[str, int]:
    style, precision = form[-1:], form[:-1].removeprefix(".")
    if style not in ("e", "f", "g") or (precision and not precision.isdigit()):
        raise ValueError(f"Expected a format such as '.4g', '.4f' or '.1e', got {form!r}.")
    return style, int(precision) if precision else _GENERAL_DIGITS
