"""Selects written rows: those that break no public rule and that a judge accepts.

Where rows are free, every place of a corpus (its label, its topic) is written until a row is
accepted or the rounds are spent, so the shares of labels and topics stay those that were asked for,
while each row follows the generator's own distribution among accepted rows. Rows that private
tokens have drawn are paid for one by one: of them some may only be left out.

**Privacy** Rows, rules and judge are functions of released and public values: post-processing, at
no cost, and the acceptance rate may be published.

**Source** Banayeeanzade et al. 2026 (EPSVec), sections 4.2 and 5.1 and appendix D.4. The paper
writes more rows than it needs and drops rejected ones; writing the same place again differs from
that only in keeping the shares.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import polars as pl
from pydantic import Field

from dpsynth_assets.datasets.fields import Declaration, Refusal
from dpsynth_assets.datasets.public_spec import EngineSpec
from dpsynth_assets.methods.base import CohortTerms, form_of
from dpsynth_assets.methods.inputs import ProgressCallback, PublicInputs, silent
from dpsynth_assets.methods.work import LANGUAGE_MODEL_WEIGHTS, PublicSizes, RunModel, Work
from dpsynth_assets.models.judges import (
    ANSWER_TOKENS,
    MAX_TEXT_TOKENS,
    RUBRIC,
    EngineJudge,
    Judge,
    JudgeError,
    LikelihoodJudge,
    Verdict,
)
from dpsynth_assets.models.row_rules import RULES, RowRules, Rule, has_abuse

if TYPE_CHECKING:
    from dpsynth_assets.models.engines.protocol import Engine

Row = TypeVar("Row")
_JUDGING_SHARE = 0.2
"""Of a round's progress."""

PUBLIC_TEXTS = 500
"""Public documents that a threshold of likelihood is taken from, at most."""


class RejectionSettings(Declaration):
    """Which rows are kept, as it stands in a dataset file; it changes no charge."""

    rules: tuple[Rule, ...] = RULES
    """Rows that are rejected. placeholders: `[Bank Name]`. language: under three words, few
    letters, or the same words again and again. repeats: nearly the same words as an earlier row.
    abuse: words of a short public list, unless domain or labels say that records hold abuse.
    """
    judge: Literal["none", "likelihood", "rubric"] = "none"
    """none: the rules alone. likelihood: the public language model; keeps rows about as likely as
    public text. rubric: an instruction-tuned model scores each row's writing.
    """
    lowest_quantile: float = Field(default=0.05, ge=0, lt=1)
    """likelihood: rows less likely per token than this share of public text is are written again
    (no unit), in [0, 1).
    """
    min_overall: float = Field(default=6, ge=1, le=10)
    """rubric: least overall score of a row that is kept, in [1, 10]; EPSVec: 6."""
    engine: EngineSpec | None = None
    """rubric: what runs the judge; EPSVec takes Qwen3-4B-Instruct. An endpoint may judge too: rows
    are released. Empty: the dataset's engine.
    """
    rounds: int = Field(default=6, ge=1, le=100)
    """Times a row is written at most, in [1, 100]; places without an accepted row are left out."""
    best_of: int = Field(default=1, ge=1, le=100)
    """Candidates of a place of which the accepted one with the judge's best score is kept (n,
    texts), in [1, rounds]; writing and judging take n times as long. 1: the first.
    """

    def refusals(self) -> Iterator[Refusal]:
        """Settings that no judge reads."""
        if self.best_of > (1 if self.judge == "none" else self.rounds):
            expected = "best_of in [1, rounds], and 1 without a judge"
            yield Refusal("best_of", expected, "Raise rounds, or name a judge.")
        if self.judge != "rubric" and self.engine is not None:
            expected = f"no engine for judge: {self.judge}"
            yield Refusal("engine", expected, "Drop engine, or use judge: rubric.", "one")

    def public_inputs(self) -> frozenset[str]:
        """Artifacts of the public base the judge reads, by the last part of their asset keys."""
        if self.judge == "none":
            return frozenset()
        if self.judge == "likelihood":
            return frozenset({"public_language_model", "public_corpus"})
        names_no_model = self.engine is None or self.engine.model is None
        return frozenset({"public_language_model"} if names_no_model else ())

    def models_run(self) -> tuple[RunModel, ...]:
        """Models that the judge computes with, where it asks no engine of the rows' writer."""
        if self.judge == "likelihood":
            return (LANGUAGE_MODEL_WEIGHTS,)
        return () if self.engine is None else (self.engine,)

    def work(self, candidates: float, sizes: PublicSizes) -> Work:
        """Counts the judging, and that of the public texts which a threshold is taken from."""
        if self.judge == "none":
            return Work()
        if self.judge == "likelihood":
            return Work(read=(candidates + PUBLIC_TEXTS) * sizes.text(MAX_TEXT_TOKENS))
        rubric = sizes.tokens_of(RUBRIC) + sizes.text(MAX_TEXT_TOKENS)
        return sizes.writing(candidates, rubric, ANSWER_TOKENS, rows=64)


WRITTEN_AGAIN = 0.25
"""Candidates written again for each that is asked for: 5 % after epsvec and aug_pe with SmolLM2,
28 % after ctcl of three steps, 102 % after secpe on letters of few alike."""


def accepted_work(
    settings: RejectionSettings | None,
    rows: float,
    sizes: PublicSizes,
    write: Callable[[float], Work],
) -> Work:
    """Counts a corpus: candidates of every row, those written again, and the judging.

    Args:
        settings: As in the dataset file; None: the rules alone.
        rows: Rows of the corpus.
        sizes: Declared numbers and public lengths.
        write: Work of writing this many texts.
    """
    settings = settings_of(settings)
    candidates = rows * settings.best_of
    again = candidates * WRITTEN_AGAIN
    return write(candidates) + write(again) + settings.work(candidates + again, sizes)


def settings_of(said: RejectionSettings | None) -> RejectionSettings:
    """What a dataset file says of the rows that are kept; the rules alone where it says nothing."""
    return said or RejectionSettings()


_KEPT = (
    "Which rows are kept: a row that breaks a public rule or that a judge rejects is written "
    "again at no cost; if private tokens drew it, it is left out. Empty: all rules, no judge."
)
KEPT_ROWS: Any = Field(default=None, description=_KEPT)
"""The setting in the config of every method that writes rows."""
KEPT_IF_SAID: Any = Field(default=None, description=_KEPT, exclude_if=lambda value: value is None)
"""The same where ledgers have entries that say nothing of it: equal parameters are one release."""


RowWriter = Callable[[Sequence[int], int, ProgressCallback], Sequence[Row]]
"""(ascending places, round 0, 1, ..., progress) -> one row for each place; a pure function of
places and round, which draws from `round_seed(seed, round)`."""


def round_seed(seed: int, round_number: int) -> int:
    """Seed of a round's public randomness; round 0 has the corpus's own, as without a judge."""
    if round_number == 0:
        return seed
    return int(np.random.SeedSequence((seed, round_number)).generate_state(1)[0])


@dataclass(frozen=True, kw_only=True)
class RowFilter:
    """Turns rows down by public rules and by a judge, where there is one.

    Attributes:
        settings: Which rules, and how often a place is written.
        judge: Judges what keeps the rules.
        words: Public words about the records: they may say that those hold abuse.
    """

    settings: RejectionSettings
    judge: Judge | None = None
    words: str = ""

    @classmethod
    def of(cls, method: Any, public: PublicInputs) -> "RowFilter":
        """Opens what a method's settings say of its rows, all rules where they say nothing.

        Args:
            method: Bound; it has a `form` of texts, and its settings `rejection`.
            public: Public and released inputs.

        **Privacy** Reads public and released values alone.

        Raises:
            JudgeError: No engine to judge with.
            ValueError: No language model or public text.
            EngineError: The judge's engine cannot be opened.
        """
        settings, terms = settings_of(method.config.rejection), method.terms
        if form_of(method).schema is not None:  # Whole records, which no rule of prose is for.
            settings = settings.model_copy(update={"rules": ()})
        words = " ".join((terms.domain, *terms.label_texts))
        return cls(settings=settings, judge=open_judge(settings, public), words=words)

    def rules(self) -> RowRules:
        """The rules that are asked for, about to see a corpus."""
        asked = self.settings.rules
        drops = [rule for rule in asked if rule != "abuse" or not has_abuse(self.words)]
        return RowRules(drops)

    @property
    def facts(self) -> dict[str, Any]:
        """Public settings, for metadata and card."""
        judged = {} if self.judge is None else self.judge.facts
        return {"rules": list(self.settings.rules), **judged}


EVERY_ROW = RowFilter(settings=RejectionSettings(rules=(), rounds=1))
"""Keeps every row that has a word."""


def open_judge(settings: RejectionSettings, public: PublicInputs) -> Judge | None:
    """Opens the judge a dataset file asks for, if any.

    Args:
        settings: Which judge.
        public: What `settings.public_inputs()` names; `public.engine` where settings name none.

    Raises:
        JudgeError: No engine to judge with.
        ValueError: No language model or public text.
        EngineError: The judge's engine cannot be opened.
    """
    if settings.judge == "none":
        return None
    if settings.judge == "likelihood":
        model, _ = public.required("language_model"), public.required("public_records")
        texts = public.texts(PUBLIC_TEXTS)
        return LikelihoodJudge(model, texts, lowest_quantile=settings.lowest_quantile)
    engine = public.engine
    if settings.engine is not None:
        from dpsynth_assets.models.engines.protocol import open_engine

        engine = open_engine(settings.engine, language_model=public.language_model)
    if engine is None:
        raise JudgeError(
            "Expected an engine that runs the judge, got none; write rejection.engine, with the "
            "model: of an instruction-tuned judge."
        )
    return EngineJudge(engine, min_overall=settings.min_overall)


def check_judge(said: RejectionSettings | None, terms: CohortTerms, public: PublicInputs) -> None:
    """Has a rubric judge score its control texts before a charge, if a stage reads what it runs.

    Args:
        said: As in the dataset file; None: the rules alone.
        terms: Names the dataset's engine.
        public: What the stage reads. Its weights are dropped afterwards, unless it holds them open.

    Raises:
        JudgeError: The judge writes no scores, or does not tell sentences from shuffled words.
        EngineError: The judge's engine cannot be opened.
    """
    from dpsynth_assets.models.engines.protocol import open_engine, serving

    settings, weights = settings_of(said), public.language_model
    spec = settings.engine or terms.engine
    opened: AbstractContextManager[Engine]
    if settings.judge != "rubric":
        return
    if settings.engine is None and public.engine is not None:
        opened = nullcontext(public.engine)
    elif spec.is_endpoint or spec.model is not None:
        opened = nullcontext(open_engine(spec))
    elif weights is not None:
        opened = serving(spec, weights)
    else:
        return
    with opened as engine:
        EngineJudge(engine).check()


def write_accepted(
    write_rows: RowWriter[Row],
    kept: RowFilter,
    rows: int,
    progress: ProgressCallback,
    *,
    text_of: Callable[[Any], str] = str,
) -> tuple[list[Row | None], dict[str, Any]]:
    """Writes rows until every place has the best accepted of `best_of`, or the rounds are spent.

    Deterministic where writer and judge are.

    Args:
        write_rows: Writes candidates for places.
        kept: Accepts or rejects.
        rows: Places of the corpus, >= 1.
        progress: Told the share done, never falling.
        text_of: A candidate's text; candidates are texts unless this says otherwise.

    Returns:
        The accepted row of every place in order, None where there is none; and released facts:
        rules, judge, thresholds, `candidates`, `acceptance_rate` (accepted of candidates),
        `turned_down` (candidates by the rule they broke), `rounds`, `places_left_empty`, and mean
        scores where there is a judge.

    Raises:
        JudgeError: Not one candidate was accepted, or the judge gives no usable answer.
    """
    accepted: list[Row | None] = [None] * rows
    best = [-math.inf] * rows
    settings, tally, rules = kept.settings, _Tally(), kept.rules()
    todo = empty = list(range(rows))
    for round_number in range(settings.rounds):
        report = _round_progress(progress, round_number, len(todo))
        candidates = write_rows(todo, round_number, report)
        verdicts = tally.judged(list(map(text_of, candidates)), kept, rules, report)
        for place, candidate, verdict in zip(todo, candidates, verdicts, strict=True):
            score = verdict.score or 0.0
            if verdict.accepted and score > best[place]:
                accepted[place], best[place] = candidate, score
        empty = [place for place in range(rows) if accepted[place] is None]
        todo = list(range(rows)) if round_number + 1 < settings.best_of else empty
        if not todo:
            break
    if len(empty) == rows:
        raise JudgeError(
            f"Expected rows that keep the rules and that the judge accepts, got none in "
            f"{tally.candidates} candidates ({tally.reasons}); lower rejection's threshold, drop a "
            "rule of rejection.rules, or train the generator longer."
        )
    progress(1.0, f"{rows - len(empty)} of {rows} rows accepted")
    return accepted, {**kept.facts, **tally.facts(round_number + 1, len(empty))}


def accepted_rows(texts: Sequence[str | None], **columns: Any) -> pl.DataFrame:
    """The rows of a corpus from what `write_accepted` returned of it: no row of an empty place.

    Args:
        texts: Text of every place.
        columns: Further columns, in order, `label` first.
    """
    words = {"text": pl.String, "label": pl.String}
    return pl.DataFrame({"text": texts, **columns}, schema_overrides=words).drop_nulls("text")


_MOST_LEFT_OUT = 0.5
"""Of paid rows: rules that would leave out more do not fit these records, and leave out none."""


def kept_rows(frame: pl.DataFrame, kept: RowFilter) -> tuple[pl.DataFrame, dict[str, Any]]:
    """Leaves out rows that break a rule or that the judge rejects: they were paid for, none is new.

    Args:
        frame: Rows with a column `text`.
        kept: Accepts or rejects.

    Returns:
        The rows that stay, in their order; all of them where fewer than half would, since rules
        that reject most of what records have paid for are not for records of this kind. And
        released facts as `write_accepted` has them, `rules_fit` False in that case.
    """
    if not frame.height:
        return frame, {}
    tally = _Tally()
    verdicts = tally.judged(frame["text"].to_list(), kept, kept.rules(), silent)
    facts = {**kept.facts, **tally.facts(1, tally.candidates - tally.accepted)}
    if tally.accepted < _MOST_LEFT_OUT * frame.height:
        return frame, {**facts, "rules_fit": False}
    return frame.filter([verdict.accepted for verdict in verdicts]), facts


class _Tally:
    """What rules and judge did, in numbers."""

    def __init__(self) -> None:
        self.candidates = self.accepted = self._scored = 0
        self._turned_down: Counter[str] = Counter()
        self._all = self._kept = 0.0

    def judged(
        self, texts: Sequence[str], kept: RowFilter, rules: RowRules, report: ProgressCallback
    ) -> list[Verdict]:
        """Judges candidates that keep the rules; the others are rejected unseen. Counts both."""
        faults = list(map(rules.fault, texts))
        sound = [text for text, fault in zip(texts, faults, strict=True) if not fault]
        judged = [Verdict(True, None)] * len(sound)
        if kept.judge is not None:
            judged = kept.judge.judge(
                sound, lambda share: report(1 - _JUDGING_SHARE * (1 - share), "judging rows")
            )
        left = iter(judged)
        verdicts = [Verdict(False, None) if fault else next(left) for fault in faults]
        self.candidates += len(texts)
        for verdict, fault in zip(verdicts, faults, strict=True):
            self.accepted += verdict.accepted
            if not verdict.accepted:
                unscored = "unscored" if verdict.score is None else "judge"
                self._turned_down[fault or unscored] += 1
            if verdict.score is not None:
                self._scored += 1
                self._all += verdict.score
                self._kept += verdict.score if verdict.accepted else 0.0
        return verdicts

    @property
    def reasons(self) -> str:
        """How many candidates broke which rule, the most frequent first."""
        return ", ".join(f"{name} {count}" for name, count in self._turned_down.most_common())

    def facts(self, rounds: int, left_empty: int) -> dict[str, Any]:
        """Released numbers."""
        facts: dict[str, Any] = {
            "candidates": self.candidates,
            "acceptance_rate": round(self.accepted / max(1, self.candidates), 4),
            "turned_down": dict(sorted(self._turned_down.items())),
            "rounds": rounds,
            "places_left_empty": left_empty,
        }
        if self._scored:
            facts["mean_score_candidates"] = round(self._all / self._scored, 4)
            facts["mean_score_accepted"] = round(self._kept / max(1, self.accepted), 4)
        return facts


def _round_progress(progress: ProgressCallback, round_number: int, places: int) -> ProgressCallback:
    """Progress of one round: the first is half of the whole, the next half of what remains."""
    start, span = 1 - 0.5**round_number, 0.5 ** (round_number + 1)

    def report(share: float, message: str) -> None:
        progress(start + span * share, f"round {round_number + 1}, {places} rows: {message}")

    return report
