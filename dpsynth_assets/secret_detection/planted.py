"""Made-up secrets to plant in public text, and the sentences that carry them.

They are written as people write such things, with checksums where the real ones have them, and one
in four as people disguise or mistype them. They are public: the same for everybody who asks with
the same seed.
"""

import re
from collections.abc import Callable
from random import Random

CARRIERS = (
    "Write to {} if anything is unclear.",
    "It concerns {}.",
    "I gave them {} at the counter,",
    "Ask for {} (not the other one)!",
    "my details: {}; please delete them",
    'She only said "{}" and left.',
)
"""Sentences around a planted value: with punctuation on either side, quoted, in the middle."""

_GIVEN = ("Amara", "Tobias", "Ingrid", "Mehmet", "Priya", "Callum", "Noor", "Beatriz")
_FAMILY = ("Lindqvist", "Okafor", "Marchetti", "Novak", "Castellanos", "Whitfield", "Tanaka")
_PLACES = ("Rotterdam", "Albuquerque", "Lagos", "Gdansk", "Osaka", "Cordoba", "Winnipeg")
_HOSTS = ("example.com", "mail.example.org", "north-shop.co.uk", "clinic.example.net")
_SYLLABLES = ("bor", "vex", "tal", "ruk", "mi", "zan", "dre", "qua", "lo", "fin", "sti", "gha")


_DISGUISED_ONE_IN = 4


def planter_of(entity: str | None) -> Callable[[Random], str] | None:
    """What makes up values of an entity; None where it is not known how they look."""
    planter = _PLANTERS.get(entity or "")
    if planter is None:
        return None

    def made_up(draw: Random) -> str:
        value = planter(draw)
        return _disguised(value, draw) if draw.randrange(_DISGUISED_ONE_IN) == 0 else value

    return made_up


def invented_word(draw: Random) -> str:
    """A word that no dictionary holds."""
    return "".join(draw.choice(_SYLLABLES) for _ in range(4))


def _disguised(value: str, draw: Random) -> str:
    """A value in a notation that no rule was made for: other separators, or lower case."""
    if "@" in value:
        spelled = value.replace("@", " at ").replace(".", " dot ")
        return draw.choice((spelled, value.replace("@", " @ ")))
    if not any(sign.isdigit() for sign in value):
        return value.lower()
    return re.sub(r"[-. :/()]+", draw.choice((" ", "", "_")), value).strip()


def _digits(draw: Random, count: int) -> str:
    return "".join(draw.choice("0123456789") for _ in range(count))


def _email(draw: Random) -> str:
    given, family = draw.choice(_GIVEN).lower(), draw.choice(_FAMILY).lower()
    name = draw.choice((f"{given}.{family}", f"{given[0]}{family}", f"{family}_{_digits(draw, 2)}"))
    return f"{name}@{draw.choice(_HOSTS)}"


def _phone(draw: Random) -> str:
    area, office, line = draw.choice(("212", "415", "617", "720")), "555", _digits(draw, 4)
    forms = ("({0}) {1}-{2}", "{0}-{1}-{2}", "+1 {0} {1} {2}", "{0}.{1}.{2}", "{0}{1}{2}")
    return draw.choice(forms).format(area, office, line)


def _card(draw: Random) -> str:
    body = "4" + _digits(draw, 14)
    doubled = [int(d) * (2 - place % 2) for place, d in enumerate(body)]
    check = -sum(d - 9 if d > 9 else d for d in doubled) % 10
    number = f"{body}{check}"
    parts = [number[start : start + 4] for start in range(0, 16, 4)]
    return draw.choice((" ", "-", "")).join(parts)


def _iban(draw: Random) -> str:
    body = _digits(draw, 18)
    check = 98 - int(f"{body}131400") % 97  # D = 13, E = 14
    return f"DE{check:02d}{body}"


def _social_security(draw: Random) -> str:
    first, second, third = (
        draw.randrange(101, 665),
        draw.randrange(10, 99),
        draw.randrange(1000, 9999),
    )
    return f"{first}-{second}-{third}"


def _address(draw: Random) -> str:
    return ".".join(str(draw.randrange(1, 254)) for _ in range(4))


def _url(draw: Random) -> str:
    scheme = draw.choice(("https://", "http://www.", "www."))
    return f"{scheme}{draw.choice(_HOSTS)}/{invented_word(draw)}"


def _uuid(draw: Random) -> str:
    hexadecimal = "".join(draw.choice("0123456789abcdef") for _ in range(32))
    parts = [hexadecimal[:8], hexadecimal[8:12], "4" + hexadecimal[13:16]]
    return "-".join([*parts, "a" + hexadecimal[17:20], hexadecimal[20:]])


def _date(draw: Random) -> str:
    day, month, year = draw.randrange(1, 28), draw.randrange(1, 12), draw.randrange(1940, 2020)
    return draw.choice((f"{month:02d}/{day:02d}/{year}", f"{year}-{month:02d}-{day:02d}"))


_PLANTERS: dict[str, Callable[[Random], str]] = {
    "EMAIL_ADDRESS": _email,
    "PHONE_NUMBER": _phone,
    "CREDIT_CARD": _card,
    "IBAN_CODE": _iban,
    "US_SSN": _social_security,
    "IP_ADDRESS": _address,
    "URL": _url,
    "UUID": _uuid,
    "MAC_ADDRESS": lambda draw: ":".join(f"{draw.randrange(256):02x}" for _ in range(6)),
    "DATE_TIME": _date,
    "PERSON": lambda draw: f"{draw.choice(_GIVEN)} {draw.choice(_FAMILY)}",
    "LOCATION": lambda draw: draw.choice(_PLACES),
}
