"""The two organisations whose mailboxes are private; public text never names them."""

from mailboxes.grammar import Organisation

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
"""Whose mailbox is the first private cohort. Its topics, desks and style are not in public text."""

SECOND_ORGANISATION = Organisation(
    name="Thornbury Savings",
    places=("Mercer Street", "Old Quay", "Saltern Lane"),
    topic_shares={
        "card": 0.20, "transfer": 0.17, "mortgage": 0.14, "branch": 0.10, "login": 0.11,
        "parking": 0.06, "outage": 0.05, "coffee": 0.04, "lift": 0.04, "booking": 0.05,
        "membership": 0.04,
    },
    desks={
        "card": "Support", "transfer": "Accounts", "mortgage": "Welfare", "branch": "Facilities",
        "login": "Support", "parking": "Facilities", "outage": "Support", "coffee": "Welfare",
        "lift": "Facilities", "booking": "Accounts", "membership": "Welfare",
    },
    tone_shares=(0.40, 0.10, 0.25, 0.25),
    greeting="Good morning,",
    signatures=(
        "Yours, {customer}, {home}, account {account}", "Thank you, {customer} ({account})",
    ),
    account_pattern="TS-99-99",
    circumstance_share=0.9,
    middle_share=0.6,
)  # fmt: skip
"""Whose mailboxes are the further private cohorts: other topics, desks and habits."""
