"""The demo's public and private corpora, written by a seeded grammar of our own.

The public corpus is a broad mixture: hundreds of organisations, forty-eight topics, every tone. The
private corpus is the mailbox of one organisation: fourteen of those topics in other shares, its own
rule for which desk handles what, longer and less happy messages, and one habit of signing. A model
that knows the public corpus therefore writes well, but about the wrong things and under the wrong
labels; one real example in its prompt is enough to write like the private mailbox.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

from dpsynth_assets.demo_corpus.canaries import canary_sentence, planted_canaries
from dpsynth_assets.demo_corpus.grammar import (
    Customer,
    Message,
    Organisation,
    make_customer,
    public_organisation,
    write_message,
)
from dpsynth_assets.demo_corpus.topics import DESKS

PUBLIC_FILE = "public.parquet"
PRIVATE_FILE = "private_tickets.jsonl"
CANARY_FILE = "private_canaries.txt"
MESSAGES_PER_ORGANISATION = 20
MESSAGES_PER_CUSTOMER = 3

PRIVATE_ORGANISATION = Organisation(
    name="Rosemere Campus",
    places=("Hawford Hall", "Linwick House", "Coldgate Court"),
    topic_shares={
        "wifi": 0.13, "heating": 0.11, "laundry": 0.09, "meals": 0.10, "damp": 0.05,
        "reading": 0.06, "printing": 0.05, "bus": 0.08, "bicycle": 0.06, "counselling": 0.08,
        "noise": 0.07, "fees": 0.06, "parcel": 0.03, "locker": 0.03,
    },
    desks={
        "wifi": "Facilities", "heating": "Facilities", "laundry": "Welfare", "meals": "Accounts",
        "damp": "Welfare", "reading": "Support", "printing": "Accounts", "bus": "Welfare",
        "bicycle": "Facilities", "counselling": "Support", "noise": "Support", "fees": "Accounts",
        "parcel": "Support", "locker": "Accounts",
    },
    tone_shares=(0.45, 0.08, 0.17, 0.30),
    greeting="Hello,",
    signatures=(
        "{customer}, {home}, account {account}", "{customer}, {home}",
        "{customer}, {home}. Write to {email}.",
    ),
    account_pattern="RM-9999",
    circumstance_share=1.0,
    middle_share=0.9,
)  # fmt: skip
"""Whose mailbox is private. Its topics, desks and style are the demo's secret distribution."""


@dataclass(frozen=True)
class DemoCorpora:
    """Files of the demo and facts about them that are public by construction."""

    public: Path
    private: Path
    canaries: Path
    public_documents: int
    private_records: int


def write_demo_corpora(
    folder: Path, *, public_documents: int = 8000, private_records: int = 5000, seed: int = 0
) -> DemoCorpora:
    """Writes the public corpus, the private tickets and the planted canaries.

    Args:
        folder: Created if missing; existing demo files are replaced.
        public_documents: Rows of `public.parquet` (columns `text`, `label`, `group`).
        private_records: Lines of `private_tickets.jsonl` (`id`, `customer_id`, `text`, `label`).
        seed: Public seed; equal seeds give equal files.

    Returns:
        Where the files are and how many rows they have.
    """
    import polars as pl

    folder.mkdir(parents=True, exist_ok=True)
    corpora = DemoCorpora(
        public=folder / PUBLIC_FILE,
        private=folder / PRIVATE_FILE,
        canaries=folder / CANARY_FILE,
        public_documents=public_documents,
        private_records=private_records,
    )
    pl.DataFrame(public_rows(public_documents, seed)).write_parquet(corpora.public)
    lines = [json.dumps(row, ensure_ascii=False) for row in private_rows(private_records, seed)]
    corpora.private.write_text("\n".join(lines) + "\n", encoding="utf-8")
    codes = planted_canaries(seed)
    corpora.canaries.write_text("\n".join(codes) + "\n", encoding="utf-8")
    return corpora


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
        if organisation.name == PRIVATE_ORGANISATION.name:
            continue
        for _ in range(MESSAGES_PER_ORGANISATION):
            customer = make_customer(random, organisation)
            yield organisation.name, _message(random, organisation, customer)


def _message(random: Random, organisation: Organisation, customer: Customer) -> Message:
    shares = organisation.topic_shares
    topic = random.choices(list(shares), list(shares.values()))[0]
    return write_message(random, organisation, customer, topic)


def private_rows(count: int, seed: int) -> list[dict[str, str]]:
    """Rows of the private mailbox, canaries planted, in random order of time."""
    random = Random(f"private-{seed}")
    customers = [
        make_customer(random, PRIVATE_ORGANISATION)
        for _ in range(max(1, count // MESSAGES_PER_CUSTOMER))
    ]
    rows = []
    for index in range(count):
        writer = random.randrange(len(customers))
        message = _message(random, PRIVATE_ORGANISATION, customers[writer])
        rows.append(
            {
                "id": f"T{index:05d}",
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


__all__ = ["DESKS", "PRIVATE_ORGANISATION", "DemoCorpora", "planted_canaries", "write_demo_corpora"]
