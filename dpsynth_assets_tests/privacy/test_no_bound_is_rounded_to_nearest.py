"""A walk over the whole package: nothing but one module formats a bound to a number of digits."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import dpsynth_assets

PACKAGE = Path(dpsynth_assets.__file__).parent
ALONE = PACKAGE / "privacy" / "directed_rounding.py"

BOUND = re.compile(
    r"epsilon|delta|posterior|prior\b|budget_eps|remaining|spent|claimed|observed|proven"
    r"|noise|sigma|eta\b|(^|\W|_)(mu|rho|svt)(\W|_|$)|recall|sampling_probability|false_alarm",
    re.IGNORECASE,
)
"""Names that stand for what a release may cost, what is left, or the noise it rests on."""

NUMERIC = re.compile(r"[.0-9,]*[gef%]$|[.0-9,]*\{.*\}[gef%]$")
ANONYMOUS = re.compile(r"(float\()?(value|number|n|x|v|figure|amount|bound|limit|total|left)\)?")
"""Names that may hold anything: a helper that formats one formats whatever it is given."""

KEPT = {
    # Text inside the parameters that identify a release: other text would be another release, and
    # would be paid for again. The exact number stands beside each.
    ("methods/fine_tuning/private_training.py", "training.noise_multiplier"),
    ("methods/fine_tuning/private_training.py", "training.sampling_probability"),
    ("methods/evolution/private_evolution.py", "noise_std"),
    ("methods/epsvec/plan.py", "noise.noise_multiplier"),
    ("methods/epsvec/plan.py", "noise.sampling_probability"),
    # The planted bug itself.
    ("attacks/audits/ledger_rules.py", "bound"),
    # A constant of layer norms.
    ("models/smollm2.py", "fields['llama.attention.layer_norm_rms_epsilon']"),
    # Ratios, scores, seconds, clip bounds of public text: no bound is read off them.
    ("attacks/audits/gradients.py", "1 / setting.sampling_probability"),
    ("methods/epsvec/method.py", "float(bound)"),
    ("orchestration/resources/progress.py", "left"),
    ("orchestration/assets/scoring.py", "value"),
    ("report/render.py", "value"),
    ("report/render.py", "100 * value"),
    ("cli/report.py", "value"),
    ("datasets/private_spec.py", "float(total)"),
}
"""(module, expression): every one read and found to be no bound, or bound by its text."""


def formatted(path: Path) -> Iterator[tuple[int, str]]:
    """(line, expression) of all that a module formats as a number or rounds to nearest."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FormattedValue) and node.format_spec is not None:
            spec = "".join(
                str(part.value) if isinstance(part, ast.Constant) else "{}"
                for part in getattr(node.format_spec, "values", [])
            )
            if NUMERIC.fullmatch(spec):
                yield node.lineno, ast.unparse(node.value)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("round", "format"):
            yield node.lineno, ast.unparse(node.args[0])
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".format"):
            called = ast.unparse(node.func.value) if isinstance(node.func, ast.Attribute) else ""
            if re.search(r"\{:[^}]*[gef%]\}", called) or called == "form":
                yield from ((node.lineno, ast.unparse(argument)) for argument in node.args)
        elif isinstance(node, ast.BinOp) and re.search(
            r"%[-+ #0-9.]*[gef]", str(getattr(node.left, "value", ""))
        ):
            yield node.lineno, ast.unparse(node.right)


def offences(path: Path) -> list[str]:
    """Every bound, or number of unknown meaning, that a module rounds by itself."""
    module = path.relative_to(PACKAGE).as_posix()
    return [
        f"{module}:{line}: {expression}"
        for line, expression in formatted(path)
        if (BOUND.search(expression) or ANONYMOUS.fullmatch(expression))
        and (module, expression) not in KEPT
    ]


FORMATS = re.compile(
    r"""(?:"[^"]*"|\w+(?:\.\w+)*)\s*(?:\|\s*(?:round|format)\b|\.format\()[^)}|]*|\{\w*[:!][^}]*\}"""
)
"""All that a template or a sentence of a label formats by itself."""
KEPT_IN_TEMPLATES = {
    '"%.4f"|format(content.bounded',  # The length of a bar.
    '"{:.1%}".format(kept.acceptance_rate',  # A count of released rows.
}


def test_templates_and_sentences_format_no_bound() -> None:
    files = sorted([*PACKAGE.rglob("*.j2"), *(PACKAGE / "report").rglob("*.yaml")])
    assert len(files) > 3
    found = {each for path in files for each in FORMATS.findall(path.read_text())}
    assert found == KEPT_IN_TEMPLATES
    planted = ('{{ "%.3g"|format(epsilon) }}', "{{ delta | round(3) }}", "ε = {epsilon:.3g}")
    assert all(FORMATS.search(each) for each in planted)


def test_every_bound_is_written_by_the_one_function() -> None:
    modules = sorted(path for path in PACKAGE.rglob("*.py") if path != ALONE)
    assert len(modules) > 100
    found = [offence for path in modules for offence in offences(path)]
    assert not found, "write these with privacy.directed_rounding: " + "; ".join(found)


@pytest.mark.parametrize(
    "code",
    [
        "f'ε = {spend.epsilon:.4g}'",
        "f'δ = {delta:g}'",
        "f'{100 * posterior:.1f} %'",
        "round(label['epsilon'], 3)",
        "'{:.3g}'.format(row['epsilon'])",
        "'ε = %.2f' % epsilon",
        "def shown(value): return f'{value:.4f}'",
        "format(remaining, '.2f')",
        "f'{mu:.{digits}f}'",
    ],
)
def test_the_walk_notices_every_way_of_rounding(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{__name__}.PACKAGE", tmp_path)
    module = tmp_path / "page.py"
    module.write_text(code)
    assert offences(module)
