# ruff: noqa: E501, SIM905 - lists of words read best as words
"""Names, frames and styles that every organisation composes its messages from."""

FIRST_NAMES = tuple(
    "Anna Ben Carla David Ella Frank Grace Henry Ivy Jack Karen Liam Maria Noah Olga Peter Rosa Sam "
    "Tina Umar Vera Will Yusuf Zoe Amir Bella Chen Diana Erik Fatima".split()
)
LAST_NAMES = tuple(
    "Adams Baker Clark Diaz Evans Fisher Green Hughes Iqbal Jones Kumar Lopez Moore Novak Owen Patel "
    "Quinn Reed Shah Turner Usman Vance Walker Young Zeller Bishop Carter Dunn Ellis Flynn".split()
)
PLACE_STARTS = tuple(
    "Alder Birch Ash Elm Har Mill Stone Nor West Green Oak Riv Castle King Rose Clay Lin Mar Fair Dun "
    "Bram Cold Haw Thorn".split()
)
PLACE_ENDS = tuple(
    "gate ford wick field ham bridge worth mere dale ton well croft by stead".split()
)
PLACE_KINDS = ("House", "Road", "Hall", "Street", "Court", "Lane")
ORGANISATION_KINDS = {
    "housing": ("Homes", "Housing"),
    "internet": ("Net", "Telecom"),
    "canteen": ("Kitchen", "Catering"),
    "library": ("Library", "Reading Trust"),
    "transport": ("Lines", "Transit"),
    "clinic": ("Clinic", "Health"),
    "bank": ("Bank", "Savings"),
    "shop": ("Stores", "Market"),
    "gym": ("Sports", "Leisure"),
    "council": ("Council", "Borough"),
    "hotel": ("Hotel", "Lodge"),
    "school": ("College", "Campus"),
}
DAYS = tuple("Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split())
MONTHS = tuple(
    "January February March April May June July August September October November December".split()
)
RELATIVES = ("husband", "wife", "mother", "father", "sister", "brother", "neighbour", "flatmate")
COUNTS = ("two", "three", "four", "five", "six")

TONES = ("problem", "merit", "question", "request")
OPENINGS = {
    "problem": (
        "I have to complain that {issue}.",
        "{Issue}, and it is not the first time this {month}.",
        "Once again {issue}.",
        "I am upset because {issue}.",
        "I reported this on {day} and nothing has changed: {issue}.",
        "It cannot go on like this, {issue}.",
    ),
    "merit": (
        "I want to say thank you, {issue}.",
        "{Issue}, which made my week.",
        "Credit where it is due: {issue}.",
        "I was delighted that {issue}.",
        "I rarely write letters of praise, but {issue}.",
    ),
    "question": (
        "A quick question: {issue}?",
        "Could you tell me something, {issue}?",
        "{Issue}?",
        "Before {day} I need to know, {issue}?",
        "I could not find it on your website: {issue}?",
    ),
    "request": (
        "Please {issue}.",
        "Could you {issue}?",
        "I would like to ask you to {issue}.",
        "Would you kindly {issue} before {day}?",
        "I am writing to ask you to {issue}.",
    ),
}
MIDDLES = {
    "problem": (
        "The {staff} promised to call on {day}, but nobody did.",
        "I have written to {organisation} {count} times.",
        "I expect better from {organisation}.",
        "My {relative} is just as annoyed as I am.",
        "{person}, the {staff}, only shrugged.",
        "Nobody at {place} seems to care.",
    ),
    "merit": (
        "The {staff}, {person}, was patient and kind.",
        "Please pass my thanks to {person}, the {staff}.",
        "I will recommend {organisation} to my {relative}.",
        "Everybody at {place} deserves a raise.",
    ),
    "question": (
        "The {staff} could not tell me.",
        "My {relative} would like to know as well.",
        "I asked {person} at {place}, but got no answer.",
        "An answer by {day} would help.",
    ),
    "request": (
        "My {relative} and I would be grateful.",
        "I am at {place} until {day}.",
        "The {staff}, {person}, said {organisation} can arrange it.",
        "It would help us a lot this {month}.",
    ),
}
GREETINGS = (
    "",
    "",
    "",
    "Hello,",
    "Dear {organisation},",
    "Good morning,",
    "To whom it may concern,",
)
SIGNATURES = (
    "{customer}",
    "{customer}, {home}",
    "My account is {account}.",
    "Account {account}, {customer}",
    "Regards, {customer}",
    "Write to {email}.",
    "{customer}, account {account}",
    "Reply to {email}, please.",
    "Yours, {customer}, {home}, account {account}",
    "Thank you, {customer} ({account})",
)
