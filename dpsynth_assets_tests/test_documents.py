"""README and docs: their commands and options exist, and their links lead somewhere."""

import ast
import importlib
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
    r"^(?:\$ |\.venv/bin/)?((?:dpsynth|make) (?:\\\n|[^#\n|<>&;])+)|`((?:dpsynth|make) [^`]+)`",
    re.MULTILINE,
)
PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
PRESENT = [page for page in PAGES if page.name != "CHANGELOG.md"]
"""Pages that name no commands of earlier versions."""


def documented(*programs, pages=PRESENT):
    """The commands of pages that begin with one of these programs, each in one line."""
    for page in pages:
        for match in COMMAND.finditer(page.read_text()):
            command = " ".join((match[1] or match[2]).replace("\\\n", " ").split())
            if command.split()[0] in programs:
                yield command


@pytest.mark.parametrize("page", PRESENT, ids=lambda page: page.name)
def test_commands_and_options_of_a_page_exist(page):
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for shown in documented("dpsynth", "make", pages=[page]):
        program, *words = shlex.split(shown)
        if program == "make":
            assert words[0] in targets, shown
            continue
        command = get_command(app)
        while words and hasattr(command, "commands") and not re.match(r"-|[A-Z]", words[0]):
            name = command.resolve_command(
                command.make_context("x", [], resilient_parsing=True), words
            )
            words, command = words[1:], name[1]
            assert command is not None, shown
        known = {option for each in command.params for option in each.opts} | {"--help"}
        asked = {word.partition("=")[0] for word in words if re.match(r"--\w", word)}
        assert asked <= known, shown


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


@pytest.mark.parametrize("page", PRESENT, ids=lambda page: page.name)
def test_the_python_of_a_page_compiles_and_its_imports_exist(page):
    for program in PYTHON.findall(page.read_text()):
        for node in ast.walk(ast.parse(program)):
            if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "dpsynth_assets":
                module = importlib.import_module(node.module)
                assert all(hasattr(module, name.name) for name in node.names), program


PSEUDO_CODE = {
    "amin2024 A1": (22, {11}),
    "amin2024 A2": (6, {1, 6}),
    "amin2024 A3": (12, {1, 3, 8, 11, 12}),
    "amin2025 A1": (11, {0}),
    "epsvec A1": (9, {5, 8}),
    "epsvec A2": (10, {9}),
    "secpe A1": (6, {1, 2}),
    "secpe A2": (13, {1, 4, 11, 12}),
    "secpe A3": (14, {1, 2, 3, 11, 14}),
}
"""Lines of each algorithm, and those that compute nothing: comments, inputs, outputs, ends."""


def test_each_line_of_the_papers_pseudo_code_is_found_in_the_code():
    code = "".join(path.read_text() for path in (ROOT / "dpsynth_assets").rglob("*.py"))
    found = {name: set(known) for name, (_, known) in PSEUDO_CODE.items()}
    for name, first, last in re.findall(r"\[(\w+ A\d):L(\d+)(?:-(\d+))?\]", code):
        found[name] |= set(range(int(first), int(last or first) + 1))
    missing = {n: set(range(1, most + 1)) - found[n] for n, (most, _) in PSEUDO_CODE.items()}
    assert not {name: lines for name, lines in missing.items() if lines}
