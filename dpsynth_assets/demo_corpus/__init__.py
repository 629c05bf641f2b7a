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
from dpsynth_assets.demo_corpus.second import SECOND_ORGANISATION
from dpsynth_assets.demo_corpus.topics import DESKS

PUBLIC_FILE = "public.parquet"
PRIVATE_FILE = "private_tickets.jsonl"
CANARY_FILE = "private_canaries.txt"
SECOND_FILE = "private_letters.jsonl"
SECOND_CANARY_FILE = "private_letters_canaries.txt"
THIRD_FILE = "private_enquiries.jsonl"
FOURTH_FILE = "private_cases.jsonl"
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
    second_private: Path
    second_canaries: Path
    enquiries: Path
    cases: Path
    public_documents: int
    private_records: int
    second_private_records: int
    further_private_records: int

    @property
    def paths(self) -> tuple[Path, ...]:
        """Every file of the demo."""
        first = (self.private, self.canaries, self.second_private, self.second_canaries)
        return (self.public, *first, self.enquiries, self.cases)


def demo_corpora(
    folder: Path,
    *,
    public_documents: int = 8000,
    private_records: int = 5000,
    second_private_records: int = 5_000,
    further_private_records: int = 4000,
) -> DemoCorpora:
    """Names the demo's files in a folder without writing them."""
    return DemoCorpora(
        public=folder / PUBLIC_FILE,
        private=folder / PRIVATE_FILE,
        canaries=folder / CANARY_FILE,
        second_private=folder / SECOND_FILE,
        second_canaries=folder / SECOND_CANARY_FILE,
        enquiries=folder / THIRD_FILE,
        cases=folder / FOURTH_FILE,
        public_documents=public_documents,
        private_records=private_records,
        second_private_records=second_private_records,
        further_private_records=further_private_records,
    )


def write_demo_corpora(folder: Path, *, seed: int = 0, **sizes: int) -> DemoCorpora:
    """Writes the public corpus, the private mailboxes and planted canaries.

    Args:
        folder: Created if missing; existing demo files are replaced.
        seed: Public seed; equal seeds give equal files.
        sizes: `public_documents`: rows of `public.parquet` (columns `text`, `label`, `group`);
            `private_records`, `second_private_records` and, for each of two smaller ones,
            `further_private_records`: lines of the mailboxes (`id`, `customer_id`, `text`,
            `label`).

    Returns:
        Where the files are and how many rows they have.
    """
    import polars as pl

    folder.mkdir(parents=True, exist_ok=True)
    corpora = demo_corpora(folder, **sizes)
    public = public_rows(corpora.public_documents, seed)
    pl.DataFrame(public).write_parquet(corpora.public)
    first = private_rows(corpora.private_records, seed)
    _write_mailbox(corpora.private, corpora.canaries, first, seed)
    other = seed + 1_000_003  # Other customers, other canaries.
    second = private_rows(corpora.second_private_records, other, SECOND_ORGANISATION, "L")
    _write_mailbox(corpora.second_private, corpora.second_canaries, second, other)
    # Two later mailboxes of the same bank: other letters of other customers, other canaries.
    count = corpora.further_private_records
    _write_rows(corpora.enquiries, private_rows(count, seed + 2, SECOND_ORGANISATION, "E"))
    _write_rows(corpora.cases, private_rows(count, seed + 3, SECOND_ORGANISATION, "K"))
    return corpora


def _write_rows(path: Path, rows: list[dict[str, str]]) -> None:
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _write_mailbox(path: Path, canaries: Path, rows: list[dict[str, str]], seed: int) -> None:
    _write_rows(path, rows)
    canaries.write_text("\n".join(planted_canaries(seed)) + "\n", encoding="utf-8")


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


__all__ = [
    "DESKS",
    "PRIVATE_ORGANISATION",
    "SECOND_ORGANISATION",
    "DemoCorpora",
    "demo_corpora",
    "planted_canaries",
    "write_demo_corpora",
]
