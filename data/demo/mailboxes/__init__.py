"""Rows of the demo's corpora, written by a seeded grammar of our own.

The public corpus is a broad mixture: hundreds of organisations, forty-eight topics, every tone. A
private corpus is the mailbox of one organisation: some of those topics in other shares, its own
rule for which desk handles what, longer and less happy messages, and one habit of signing. A model
that knows the public corpus therefore writes well, but about the wrong things and under the wrong
labels; one real example in its prompt is enough to write like the private mailbox.
"""

from collections.abc import Iterator
from random import Random

from mailboxes.canaries import canary_sentence, planted_canaries
from mailboxes.grammar import (
    Customer,
    Message,
    Organisation,
    make_customer,
    public_organisation,
    write_message,
)
from mailboxes.organisations import PRIVATE_ORGANISATION, SECOND_ORGANISATION

MESSAGES_PER_ORGANISATION = 20
MESSAGES_PER_CUSTOMER = 3


def public_rows(count: int, seed: int) -> list[dict[str, str]]:
    """Rows of the public corpus; `group` names organisation and topic."""
    random = Random(f"public-{seed}")
    messages = _public_messages(random)
    return [
        {"text": message.text, "label": message.label, "group": f"{organisation}/{message.topic}"}
        for organisation, message in (next(messages) for _ in range(count))
    ]


def _public_messages(random: Random) -> Iterator[tuple[str, Message]]:
    while True:
        organisation = public_organisation(random)
        if organisation.name in (PRIVATE_ORGANISATION.name, SECOND_ORGANISATION.name):
            continue
        for _ in range(MESSAGES_PER_ORGANISATION):
            customer = make_customer(random, organisation)
            yield organisation.name, _message(random, organisation, customer)


def _message(random: Random, organisation: Organisation, customer: Customer) -> Message:
    shares = organisation.topic_shares
    topic = random.choices(list(shares), list(shares.values()))[0]
    return write_message(random, organisation, customer, topic)


def private_rows(
    count: int, seed: int, organisation: Organisation = PRIVATE_ORGANISATION, prefix: str = "T"
) -> list[dict[str, str]]:
    """Rows of a private mailbox, canaries planted, in random order of time."""
    random = Random(f"private-{seed}")
    customers = [
        make_customer(random, organisation) for _ in range(max(1, count // MESSAGES_PER_CUSTOMER))
    ]
    rows = []
    for index in range(count):
        writer = random.randrange(len(customers))
        message = _message(random, organisation, customers[writer])
        rows.append(
            {
                "id": f"{prefix}{index:05d}",
                "customer_id": f"C{writer:05d}",
                "text": message.text,
                "label": message.label,
            }
        )
    _plant(random, rows, planted_canaries(seed))
    return rows


def _plant(random: Random, rows: list[dict[str, str]], canaries: dict[str, int]) -> None:
    """Adds each canary's sentence to as many different records as it is planted times."""
    hosts = random.sample(range(len(rows)), min(len(rows), sum(canaries.values())))
    for code, times in canaries.items():
        for _ in range(min(times, len(hosts))):
            row = rows[hosts.pop()]
            row["text"] += " " + canary_sentence(code)
