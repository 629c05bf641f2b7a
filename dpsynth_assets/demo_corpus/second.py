"""The second private mailbox: a savings bank with other topics, desks and habits, and more letters.

Its records are others than the first mailbox's, so it is a cohort with a budget of its own. It is
larger because fine-tuning, unlike private prediction, learns from every record at once.
"""

from dpsynth_assets.demo_corpus.grammar import Organisation

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
"""Whose mailbox is the demo's second private cohort."""
