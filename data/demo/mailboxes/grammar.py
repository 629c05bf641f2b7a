"""Organisations, customers and the messages that customers write to them."""

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from mailboxes import phrases
from mailboxes.topics import DESKS, TOPICS, Topic


@dataclass(frozen=True)
class Organisation:
    """Who receives messages: what about, in what tone and style, and which desk handles them.

    Attributes:
        name: Composed of place pieces and a kind.
        places: Streets and houses its customers mention.
        topic_shares: Topic name -> weight.
        desks: Topic name -> the desk that handles the topic here.
        tone_shares: Weights of `phrases.TONES`.
        greeting: Opening words, or empty.
        signatures: Styles of the last line.
        account_pattern: `9` stands for a digit, everything else for itself.
        circumstance_share: Probability of a sentence about the circumstances.
        middle_share: Probability of a sentence about staff, place or family.
    """

    name: str
    places: tuple[str, ...]
    topic_shares: Mapping[str, float]
    desks: Mapping[str, str]
    tone_shares: tuple[float, ...]
    greeting: str
    signatures: tuple[str, ...]
    account_pattern: str
    circumstance_share: float = 0.8
    middle_share: float = 0.7

    @property
    def domain(self) -> str:
        """Domain of the organisation's e-mail addresses."""
        return self.name.split()[0].lower() + ".org"


@dataclass(frozen=True)
class Customer:
    """One person: the privacy unit. Everything here is a secret of the private corpus."""

    name: str
    email: str
    account: str
    home: str


@dataclass(frozen=True)
class Message:
    """One document with its label and, for the public corpus only, its topic."""

    text: str
    label: str
    topic: str


def place_name(random: Random) -> str:
    """A place composed of two known pieces, as in `Aldergate`."""
    return random.choice(phrases.PLACE_STARTS) + random.choice(phrases.PLACE_ENDS)


def person_name(random: Random) -> str:
    """First and last name from the public lists."""
    return f"{random.choice(phrases.FIRST_NAMES)} {random.choice(phrases.LAST_NAMES)}"


def fill_digits(random: Random, pattern: str) -> str:
    """Replaces every 9 of the pattern by a random digit."""
    return "".join(random.choice("0123456789") if sign == "9" else sign for sign in pattern)


def make_customer(random: Random, organisation: Organisation) -> Customer:
    """Draws a customer of an organisation."""
    name = person_name(random)
    handle = name.lower().replace(" ", ".")
    return Customer(
        name=name,
        email=f"{handle}{random.randrange(10, 100)}@{organisation.domain}",
        account=fill_digits(random, organisation.account_pattern),
        home=f"{random.choice(organisation.places)} {random.randrange(1, 99)}",
    )


def public_organisation(random: Random) -> Organisation:
    """Draws a public organisation: a few topics, mostly of one sector, and its own habits."""
    sector = random.choice(sorted(phrases.ORGANISATION_KINDS))
    own = [topic.name for topic in TOPICS.values() if topic.sector == sector]
    chosen = dict.fromkeys(random.sample(own, 2) + random.sample(sorted(TOPICS), 2))
    return Organisation(
        name=f"{place_name(random)} {random.choice(phrases.ORGANISATION_KINDS[sector])}",
        places=tuple(
            f"{place_name(random)} {random.choice(phrases.PLACE_KINDS)}" for _ in range(3)
        ),
        topic_shares={name: 0.5 + random.random() for name in chosen},
        desks={name: _public_desk(random, TOPICS[name]) for name in chosen},
        tone_shares=tuple(0.3 + random.random() for _ in phrases.TONES),
        greeting=random.choice(phrases.GREETINGS),
        signatures=tuple(random.sample(phrases.SIGNATURES, 2)),
        account_pattern=_account_pattern(random),
        circumstance_share=random.choice((0.6, 0.8, 1.0)),
        middle_share=random.choice((0.4, 0.7, 0.9)),
    )


def _public_desk(random: Random, topic: Topic) -> str:
    """The usual desk for almost half of the organisations, any desk for the others."""
    return topic.usual_desk if random.random() < 0.35 else random.choice(DESKS)


def _account_pattern(random: Random) -> str:
    letters = "".join(random.choice("BCDFGHJKLMNPRSTVWZ") for _ in range(2))
    return random.choice(("99999", "999-999", f"{letters}-9999", f"{letters}-99-99"))


def write_message(
    random: Random,
    organisation: Organisation,
    customer: Customer,
    topic_name: str,
    label_noise: float = 0.04,
) -> Message:
    """Writes one message of a customer: opening, circumstance, middle and signature.

    Args:
        random: Public seeded source.
        organisation: Gives tone, style and the desk of the topic.
        customer: Gives name, address and account.
        topic_name: What the message is about.
        label_noise: Probability that a random desk got the message.
    """
    topic = TOPICS[topic_name]
    tone = random.choices(phrases.TONES, organisation.tone_shares)[0]
    slots = _slots(random, organisation, customer, topic, tone)
    parts = [organisation.greeting, random.choice(phrases.OPENINGS[tone])]
    if random.random() < organisation.circumstance_share:
        parts.append(random.choice(topic.circumstances))
    if random.random() < organisation.middle_share:
        parts.append(random.choice(phrases.MIDDLES[tone]))
    parts.append(random.choice(organisation.signatures))
    text = " ".join(part.format(**slots) for part in parts if part)
    wrong = random.random() < label_noise
    label = random.choice(DESKS) if wrong else organisation.desks[topic_name]
    return Message(text=text, label=label, topic=topic_name)


def _slots(
    random: Random, organisation: Organisation, customer: Customer, topic: Topic, tone: str
) -> dict[str, str]:
    """Values of everything a phrase may name."""
    issue = random.choice(getattr(topic, f"{tone}s")).format(thing=random.choice(topic.things))
    return {
        "issue": issue,
        "Issue": issue[0].upper() + issue[1:],
        "staff": random.choice(topic.staff),
        "person": person_name(random),
        "organisation": organisation.name,
        "place": random.choice(organisation.places),
        "day": random.choice(phrases.DAYS),
        "month": random.choice(phrases.MONTHS),
        "relative": random.choice(phrases.RELATIVES),
        "count": random.choice(phrases.COUNTS),
        "customer": customer.name,
        "email": customer.email,
        "account": customer.account,
        "home": customer.home,
    }
