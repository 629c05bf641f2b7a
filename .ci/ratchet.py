"""Counts what there is to learn, and fails where a figure is above its limit in pyproject.toml.

    python .ci/ratchet.py

Limits stand in `[tool.ratchet]` and only go down. Code is counted by syntax tree: lines that hold
more than docstrings, comments and blanks.
"""

import ast
import io
import re
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PRODUCT, TESTS = "dpsynth_assets", "dpsynth_assets_tests"
GENERATED = {"leaderboard.md", "datasets.md"}
INTERNALS = "dagster_internals.py"
_SILENT = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENDMARKER,
}  # fmt: skip


def main() -> None:
    """Prints each figure with its limit, and fails where one is above."""
    limits = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ratchet"]
    figures = counted()
    above = [name for name, figure in figures.items() if figure > limits[name]]
    for name, figure in figures.items():
        print(f"{name:32} {figure:7} of {limits[name]}{'  <- above' if name in above else ''}")
    if above:
        sys.exit(f"Expected figures that only go down, got more: {', '.join(above)}. Take away.")


def counted() -> dict[str, int]:
    """The figures by name."""
    sources = {path: path.read_text() for path in sorted((ROOT / PRODUCT).rglob("*.py"))}
    trees = {path: ast.parse(source) for path, source in sources.items()}
    importers = Counter(name for path, tree in trees.items() for name in imported(path, tree))
    written = [path for path in (ROOT / "docs").glob("*.md") if path.name not in GENERATED]
    return {
        "product_lines": sum(code_lines(sources[path], trees[path]) for path in sources),
        "modules": len(sources),
        "short_modules_with_one_importer": sum(
            len(source.splitlines()) < 60 and importers[dotted(path)] == 1
            for path, source in sources.items()
            if path.stem != "__init__"
        ),
        "functions_over_60_lines": sum(
            lines > 60 for tree in trees.values() for lines in function_lines(tree)
        ),
        "modules_with_private_dagster": sum(
            re.search(r"\bdagster\._", source) is not None
            for path, source in sources.items()
            if path.name != INTERNALS
        ),
        "test_lines": sum(
            code_lines(path.read_text(), ast.parse(path.read_text()))
            for path in (ROOT / TESTS).rglob("*.py")
        ),
        "words_of_documents": sum(
            len(path.read_text().split()) for path in [*written, ROOT / "README.md"]
        ),
        "words_of_the_readme": len((ROOT / "README.md").read_text().split()),
    }


def code_lines(source: str, tree: ast.Module) -> int:
    """Lines with code on them."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _SILENT:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(getattr(node.value, "value", None), str):
            lines.difference_update(range(node.lineno, (node.end_lineno or 0) + 1))
    return len(lines)


def function_lines(tree: ast.Module) -> Iterator[int]:
    """Lines of each function's body, without its docstring."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            if body:
                yield (node.end_lineno or 0) - body[0].lineno + 1


def dotted(path: Path) -> str:
    """The module's name."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def imported(path: Path, tree: ast.Module) -> set[str]:
    """Modules of the product that one imports, each once; a package's own `__init__` counts not."""
    if path.stem == "__init__":
        return set()
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return {name for name in names if name.startswith(PRODUCT)}


if __name__ == "__main__":
    main()
