"""README and docs: their commands and options exist, and their links lead somewhere."""

import re
import shlex
from urllib.parse import urlsplit

import pytest
from typer.main import get_command

from dpsynth_assets.cli.main import app
from dpsynth_assets.paths import project_root

ROOT = project_root()
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(
    r"^(?:\$ )?((?:dpsynth|make) [^#\n|<>&;]+)|`((?:dpsynth|make) [^`]+)`", re.MULTILINE
)
LINK = re.compile(r"\]\(([^)\s]+)\)")
OF_OLD = {"CHANGELOG.md"}
"""Pages that name commands of earlier versions."""


@pytest.mark.parametrize("page", [p for p in PAGES if p.name not in OF_OLD], ids=lambda p: p.name)
def test_commands_and_options_of_a_page_exist(page):
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for match in COMMAND.finditer(page.read_text()):
        program, *words = shlex.split(" ".join((match[1] or match[2]).replace("'", " ").split()))
        if program == "make":
            assert words[0] in targets or not match[2], match[0]
            continue
        command = get_command(app)
        while words and hasattr(command, "commands") and not re.match(r"-|[A-Z]", words[0]):
            name = command.resolve_command(
                command.make_context("x", [], resilient_parsing=True), words
            )
            words, command = words[1:], name[1]
            assert command is not None, match[0]
        known = {option for each in command.params for option in each.opts} | {"--help"}
        asked = {word.partition("=")[0] for word in words if re.match(r"--\w", word)}
        assert asked <= known, match[0]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_of_a_page_lead_to_a_file_and_a_heading(page):
    for link in LINK.findall(FENCED.sub("", page.read_text())):
        address = urlsplit(link)
        if address.scheme:
            assert address.netloc or address.scheme == "mailto", link
            continue
        there = page.parent / address.path if address.path else page
        assert there.exists(), link
        if address.fragment:
            headings = re.findall(r"^#+ (.+)$", FENCED.sub("", there.read_text()), re.MULTILINE)
            plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
            assert address.fragment in {heading.replace(" ", "-") for heading in plain}, link
