"""The evaluation report of a cohort, as Markdown and as one HTML file without outside resources."""

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dpsynth_assets.report.evaluation import CORPUS, REAL, CorpusScore, EvaluationResult
from dpsynth_assets.report.page import STYLE
from dpsynth_assets.report.plots import (
    epsilon_plot,
    length_plot,
    score_plot,
    to_data_uri,
    to_markdown,
)

NOTICE = (
    "INTERNAL. These scores were computed against private held-out text without noise. They carry "
    "no privacy guarantee: do not publish this report or choose published settings by it."
)


@dataclass(frozen=True, kw_only=True)
class CorpusContext:
    """What the ledger says of a corpus, and rows of it to show.

    Attributes:
        guarantee: `dp`, `ex-post`, `secret`, `none` or `public`.
        epsilon: ε at δ; None where the guarantee has none.
        delta: δ; None where the guarantee has none.
        seconds: How long generation took.
        samples: Rows of the synthetic corpus to show; never real text.
    """

    guarantee: str = "none"
    epsilon: float | None = None
    delta: float | None = None
    seconds: float | None = None
    samples: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class ReportContext:
    """Title, and by name of a corpus what the scores cannot know."""

    title: str
    corpora: Mapping[str, CorpusContext] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Report:
    """A report in three forms. Internal.

    Attributes:
        markdown: Report with inline pictures.
        html: Self-contained page.
        plots: Name -> PNG bytes.
        table: One JSON object a row: name, role, guarantee, epsilon, delta and every score.
    """

    markdown: str
    html: str
    plots: Mapping[str, bytes]
    table: Sequence[Mapping[str, Any]]


def render_report(result: EvaluationResult, context: ReportContext) -> Report:
    """Renders scores with their guarantees; shows synthetic rows only, never private text."""
    table = [_table_row(score, context) for score in result.scores]
    plots = _plots(result.scores, table)
    sections = [
        ("Scores", _SCORE_COLUMNS, table),
        ("Leak checks", _LEAK_COLUMNS, [row for row in table if row["role"] != REAL]),
    ]
    return Report(
        markdown=_markdown(result, context, sections, plots),
        html=_html(result, context, sections, plots),
        plots=plots,
        table=table,
    )


def _table_row(score: CorpusScore, context: ReportContext) -> dict[str, Any]:
    known = context.corpora.get(score.name, CorpusContext())
    seconds = known.seconds if known.seconds is not None else score.seconds
    return {
        **vars(score),
        "guarantee": "—" if score.role == REAL else known.guarantee,
        "epsilon": known.epsilon,
        "delta": known.delta,
        "seconds": seconds,
        "distinct_2": score.distinct.get("2"),
        "gap_mauve": score.gap_closed.get("mauve"),
        "gap_accuracy": score.gap_closed.get("accuracy"),
    }


_SCORE_COLUMNS = {
    "name": "corpus", "guarantee": "guarantee", "epsilon": "ε", "delta": "δ", "rows": "rows",
    "mauve": "MAUVE", "mauve_std": "± std", "gap_mauve": "gap closed", "accuracy": "accuracy",
    "accuracy_std": "± std", "gap_accuracy": "gap closed", "label_distance": "label distance",
    "mean_words": "mean words", "distinct_2": "distinct-2", "seconds": "seconds",
}  # fmt: skip
_LEAK_COLUMNS = {
    "name": "corpus", "shared_spans": "rows with a shared span", "longest_span_words": "longest "
    "common span, words", "near_duplicates": "near-duplicate rows", "verbatim_private_span":
    "verbatim private span", "canaries": "canaries",
}  # fmt: skip


def _plots(scores: Sequence[CorpusScore], table: Sequence[Mapping[str, Any]]) -> dict[str, bytes]:
    plots = {}
    for name, title in (("mauve", "MAUVE"), ("accuracy", "Accuracy on real held-out text")):
        if any(getattr(score, name) is not None for score in scores if score.role == CORPUS):
            plots[name] = score_plot(scores, name, title)
    plots["lengths"] = length_plot(scores)
    points = {
        row["name"]: (row["epsilon"], row["mauve"])
        for row in table
        if row["guarantee"] == "dp" and None not in (row["epsilon"], row["mauve"])
    }
    if points:
        plots["epsilon"] = epsilon_plot(points, "MAUVE")
    return plots


def _protocol(result: EvaluationResult) -> str:
    mauve = result.settings.mauve
    return (
        f"MAUVE on {result.settings.embedder or 'sentence'} features: at most {mauve.max_rows} texts a side "
        f"(equal sides), n/{mauve.rows_by_cluster} clusters, {mauve.initialisations} k-means "
        f"initialisations of at most {mauve.iterations} iterations, PCA explained variance "
        f"{mauve.explained_variance:g}, scaling {mauve.scaling:g}, {mauve.points} points, mean and "
        f"deviation over {mauve.repeats} seeds. Accuracy: logistic regression on the same "
        "features, trained on the corpus, regularisation chosen on a tenth of it, tested on "
        f"{result.held_out_rows} real held-out records. Shared span: "
        f"{result.settings.shared_words} words that private but no public text contains. Verbatim "
        f"private span: {result.settings.verbatim_words} words found in at most "
        f"{result.settings.verbatim_max_units} private units and in no public text. Gap closed: "
        "share of the way from floor (public only, ε = 0) to ceiling (not private, ε = ∞)."
    )


def _markdown(result: EvaluationResult, context: ReportContext, sections: Any, plots: Any) -> str:
    lines = [f"# {context.title}", "", f"> **{NOTICE}**", ""]
    for title, columns, rows in sections:
        lines += [f"## {title}", "", "| " + " | ".join(columns.values()) + " |"]
        lines.append("|" + "---|" * len(columns))
        for row in rows:
            cells = (_cell(name, row[name]).replace("|", "\\|") for name in columns)
            lines.append("| " + " | ".join(cells) + " |")
        lines.append("")
    lines += ["## Protocol", "", _protocol(result), ""]
    for name, png in plots.items():
        lines += [to_markdown(png, name), ""]
    for name, text in _samples(context):
        quoted = text.replace("\n", "\n    ")
        lines += [f"**{name}** (synthetic)", "", f"    {quoted}", ""]
    return "\n".join(lines)


def _html(result: EvaluationResult, context: ReportContext, sections: Any, plots: Any) -> str:
    title = html.escape(context.title)
    body = [f"<h1>{title}</h1>", f'<p class="notice">{NOTICE}</p>']
    for heading, columns, rows in sections:
        head = "".join(f"<th>{html.escape(text)}</th>" for text in columns.values())
        lines = "".join(_html_row(columns, row) for row in rows)
        body.append(f"<h2>{heading}</h2><div class='wide'><table>")
        body.append(f"<thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></div>")
    body += ["<h2>Pictures</h2>"]
    body += [
        f'<img alt="{html.escape(name)}" src="{to_data_uri(png)}">' for name, png in plots.items()
    ]
    samples = [
        f"<figure><figcaption>{html.escape(name)}</figcaption>"
        f"<blockquote>{html.escape(text)}</blockquote></figure>"
        for name, text in _samples(context)
    ]
    body += ["<h2>Synthetic rows</h2>", *samples] if samples else []
    body += ["<h2>Protocol</h2>", f"<p>{html.escape(_protocol(result))}</p>"]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{STYLE}</style></head><body><main>"
        + "\n".join(body)
        + "</main></body></html>"
    )


def _html_row(columns: Mapping[str, str], row: Mapping[str, Any]) -> str:
    cells = "".join(f"<td>{html.escape(_cell(name, row[name]))}</td>" for name in columns)
    return f'<tr class="{html.escape(row["role"])}">{cells}</tr>'


def _samples(context: ReportContext) -> list[tuple[str, str]]:
    return [(name, text) for name, known in context.corpora.items() for text in known.samples]


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "—"
    if isinstance(value, bool):
        return "found" if value else "none"
    if isinstance(value, float):
        form = {"epsilon": ".3g", "delta": "g", "seconds": ".0f", "mean_words": ".1f"}
        return format(value, form.get(name, ".3f"))
    return str(value)
