"""Refuses words of `words.toml` in README, docs, messages, docstrings and comments of the product.

    python .ci/words.py

It says what to write instead. Code in backticks and fenced blocks is not read.
"""

import ast
import io
import re
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from pathlib import Path

from messages import PRODUCT, ROOT, messages

REFUSED = {
    re.compile(rf"\b(?:{pattern})\b".replace(" ", r"\s+"), re.IGNORECASE): instead
    for pattern, instead in tomllib.loads(Path(__file__).with_suffix(".toml").read_text())[
        "refused"
    ].items()
}
GENERATED = {"leaderboard.md"}
LABELS = {"label_texts.yaml", "cards.md.j2"}
"""Sentences of released labels and cards, which change with the label's version only."""
CODE = re.compile(r"`[^`\n]*`|^```.*?^```", re.MULTILINE | re.DOTALL)


def main() -> None:
    """Prints each refused word with its place, and fails where there is one."""
    found = [*_in_documents(), *_in_messages(), *_in_sources()]
    for line in found:
        print(line)
    if found:
        sys.exit(
            f"Expected plain words, got {len(found)} that words.toml refuses. Write the others."
        )


def _in_documents() -> Iterator[str]:
    paths = [*sorted((ROOT / "docs").glob("*.md")), *sorted(ROOT.glob("*.md"))]
    for path in paths:
        if path.name not in GENERATED:
            text = CODE.sub(lambda code: "\n" * code[0].count("\n"), path.read_text())
            for pattern, instead in REFUSED.items():
                for match in pattern.finditer(text):
                    line = text.count("\n", 0, match.start()) + 1
                    yield f"{path.relative_to(ROOT)}:{line}: {match[0]}: write {instead}."


def _in_messages() -> Iterator[str]:
    for message in messages():
        if message.path.name in LABELS:
            continue
        for pattern, instead in REFUSED.items():
            for match in pattern.finditer(CODE.sub("", message.text)):
                yield f"{message.path}:{message.line}: {match[0]}: write {instead}."


def _in_sources() -> Iterator[str]:
    for path in sorted(PRODUCT.rglob("*.py")):
        for line, text in _prose(path.read_text()):
            for pattern, instead in REFUSED.items():
                for match in pattern.finditer(CODE.sub("", text)):
                    yield f"{path.relative_to(ROOT)}:{line}: {match[0]}: write {instead}."


def _prose(source: str) -> Iterator[tuple[int, str]]:
    """Docstrings and comments, each with its first line."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield node.lineno, str(node.value.value)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


if __name__ == "__main__":
    main()
