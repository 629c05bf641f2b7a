"""Lists every text that a user can meet, with file and line.

    python .ci/messages.py [KIND …]

Texts are found by syntax tree: string literals of at least two words, docstrings that a command
shows as its help, and the templates of pages. Kinds: error, help, progress, description, text.
What stands in braces is filled in when the text is shown.
"""

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PRODUCT = ROOT / "dpsynth_assets"
TEMPLATES = (
    "*/*.j2", "report/*.yaml", "attacks/audits/*.yaml", "datasets/*.template", "cli/examples.txt",
)  # fmt: skip
PROSE = re.compile(r"[A-Za-zε]{2,}[,;:.]? +[A-Za-z{(`'\"]")
NOT_PROSE = re.compile(
    r"\\[bdsw]|\(\?|SELECT |CREATE |DELETE |INSERT |UPDATE |var\(--|</?\w+|^[\w.]+\[.+\]$"
)
SAMPLES = {
    "advice/machine_speed.py", "attacks/audits/records.py", "models/exact_decoder/opening.py",
    "models/judges.py",
}  # fmt: skip
"""Modules whose texts of kind "text" are read by models."""
KINDS = {
    "error": re.compile(
        r"raise|Error$|refus|problem|complain|_broken|_fail|Failure|BadParameter|Unreadable|lost"
        r"|:(expected|got|remedy|refusal|unadvised|without)$",
        re.IGNORECASE,
    ),
    "help": re.compile(r":(help|epilog)$|Entry$"),
    "progress": re.compile(r"progress|_section|report$|^start$|ticking"),
    "description": re.compile(r":(description|claim|mechanism|measure|title|purpose)$|Metric"),
}
"""What holds a text says its kind: a call's name, with `:KEYWORD` where it is passed by name."""
HELP = re.compile(r"\.(command|callback)$")


@dataclass(frozen=True)
class Message:
    """A text with its place.

    Attributes:
        path: The file, from the root.
        line: Its first line.
        kind: One of `KINDS`, or "text".
        text: The text, on one line.
    """

    path: Path
    line: int
    kind: str
    text: str


def main(kinds: list[str]) -> None:
    """Prints the texts, or those of some kinds."""
    for message in messages():
        if not kinds or message.kind in kinds:
            print(f"{message.path}:{message.line}: {message.kind}: {message.text}")


def messages() -> Iterator[Message]:
    """Every text of the product that a user can meet."""
    for path in sorted(PRODUCT.rglob("*.py")):
        name = path.relative_to(ROOT)
        sample = path.relative_to(PRODUCT).as_posix() in SAMPLES
        for line, kind, text in _texts(ast.parse(path.read_text()), "text"):
            if kind != "text" or not sample:
                yield Message(name, line, kind, " ".join(text.split()))
    for pattern in TEMPLATES:
        for path in sorted(PRODUCT.glob(pattern)):
            for number, line in enumerate(path.read_text().splitlines(), 1):
                if PROSE.search(line):
                    yield Message(path.relative_to(ROOT), number, "text", line.strip())


def _texts(node: ast.AST, kind: str) -> Iterator[tuple[int, str, str]]:
    """Texts below a node; `kind` is that of the nearest node above which says one."""
    text = _literal(node)
    if text is not None:
        if PROSE.search(text) and not NOT_PROSE.search(text):
            yield node.lineno, kind, text
        return
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return  # A docstring.
    if isinstance(node, ast.FunctionDef) and any(_is_command(each) for each in node.decorator_list):
        yield node.lineno, "help", ast.get_docstring(node) or ""
    for child in ast.iter_child_nodes(node):
        yield from _texts(child, _kind(node, child) or kind)


def _literal(node: ast.AST) -> str | None:
    """The text of a string literal, with the code of what is filled in."""
    if isinstance(node, ast.JoinedStr):
        filled = (
            part.value if isinstance(part, ast.Constant) else f"{{{ast.unparse(part.value)}}}"
            for part in node.values
        )
        return "".join(filled)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _kind(node: ast.AST, child: ast.AST) -> str | None:
    """What a node makes of the texts of a child of its."""
    if isinstance(node, ast.Raise):
        return "error"
    if not isinstance(node, ast.Call):
        return None
    name = ast.unparse(node.func).rpartition(".")[2]
    name += f":{child.arg}" if isinstance(child, ast.keyword) else ""
    return next((kind for kind, holder in KINDS.items() if holder.search(name)), None)


def _is_command(decorator: ast.expr) -> bool:
    """Whether a decorator makes a command of a function."""
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return HELP.search(ast.unparse(called)) is not None


if __name__ == "__main__":
    main(sys.argv[1:])
