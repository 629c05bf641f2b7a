"""Rejection sampling: rows a judge turns down are written again, in their places.

Every place of a corpus (its label, its topic) is written until a row is accepted or the rounds are
spent, so the shares of labels and topics stay those that were asked for, while each row follows the
generator's own distribution among accepted rows.

**Privacy** Rows and judge are functions of released and public values: post-processing, at no cost,
and the acceptance rate may be published.

**Source** Banayeeanzade et al. 2026 (EPSVec), sections 4.2 and 5.1 and appendix D.4. The paper
writes more rows than it needs and drops rejected ones; writing the same place again differs from
that only in keeping the shares.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, Self, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from dpsynth_assets.datasets.engine import EngineSpec
from dpsynth_assets.methods.inputs import ProgressCallback, PublicInputs
from dpsynth_assets.methods.models_run import LANGUAGE_MODEL_WEIGHTS, RunModel
from dpsynth_assets.methods.work import PublicSizes, Work
from dpsynth_assets.models.judging import EngineJudge, Judge, JudgeError, LikelihoodJudge, Verdict

Row = TypeVar("Row", covariant=True)
_JUDGING_SHARE = 0.2
"""Of a round's progress."""


class RejectionSettings(BaseModel):
    """Which rows of a corpus are kept, as it stands in a dataset file. Free, like other rows."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    judge: Literal["likelihood", "rubric"] = Field(
        default="likelihood",
        description=(
            "likelihood: the public language model; keeps rows about as likely as public text. "
            "rubric: an instruction-tuned model scores each row's writing."
        ),
    )
    lowest_quantile: float = Field(
        default=0.05,
        ge=0,
        lt=1,
        description=(
            "likelihood: rows less likely per token than this share of public text is are written "
            "again (no unit), in [0, 1)."
        ),
    )
    highest_quantile: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description=(
            "likelihood: rows more likely per token than this share of public text is are written "
            "again, as loops are (no unit), in (0, 1]."
        ),
    )
    public_texts: int = Field(
        default=500,
        ge=10,
        le=100_000,
        description="likelihood: public documents that thresholds are taken from, at most.",
    )
    min_overall: float = Field(
        default=6,
        ge=1,
        le=10,
        description="rubric: least overall score of a row that is kept, in [1, 10]; EPSVec: 6.",
    )
    engine: EngineSpec | None = Field(
        default=None,
        description=(
            "rubric: what runs the judge; EPSVec takes Qwen3-4B-Instruct. An endpoint may judge "
            "too: rows are released. Empty: the dataset's engine."
        ),
    )
    rounds: int = Field(
        default=6,
        ge=1,
        le=100,
        description=(
            "Times a row is written at most, in [1, 100]; places without an accepted row are left "
            "out."
        ),
    )
    max_text_tokens: int = Field(
        default=1024, ge=1, le=1_000_000, description="Rows are judged by their first tokens."
    )

    @model_validator(mode="after")
    def _settings_of_the_judge(self) -> Self:
        if self.lowest_quantile >= self.highest_quantile:
            raise ValueError(
                "Expected lowest_quantile < highest_quantile, got "
                f"{self.lowest_quantile} and {self.highest_quantile}. Change one of them."
            )
        if self.judge == "likelihood" and self.engine is not None:
            raise ValueError(
                "Expected no engine for judge: likelihood, got one. Drop it, or take judge: rubric."
            )
        return self

    def public_inputs(self) -> frozenset[str]:
        """Artifacts of the public base the judge reads, by the last part of their asset keys."""
        if self.judge == "likelihood":
            return frozenset({"public_language_model", "public_corpus"})
        names_no_model = self.engine is None or self.engine.model is None
        return frozenset({"public_language_model"} if names_no_model else ())

    def models_run(self) -> tuple[RunModel, ...]:
        """Models that the judge computes with, where it asks no engine of the rows' writer."""
        if self.judge == "likelihood":
            return (LANGUAGE_MODEL_WEIGHTS,)
        return () if self.engine is None else (self.engine,)

    def work(self, rows: float, sizes: PublicSizes) -> Work:
        """Counts the judging of so many rows, and of the public texts a threshold is taken from."""
        if self.judge == "likelihood":
            return Work(read=(rows + self.public_texts) * sizes.text(self.max_text_tokens))
        from dpsynth_assets.models.judging.rubric import ANSWER_TOKENS, RUBRIC

        rubric = sizes.tokens_of(RUBRIC) + sizes.text(self.max_text_tokens)
        return sizes.writing(rows, rubric, ANSWER_TOKENS, rows=64)


class RowWriter(Protocol[Row]):
    """Writes rows of a corpus for chosen places; a pure function of places and round."""

    def __call__(
        self, places: Sequence[int], round_number: int, progress: ProgressCallback
    ) -> Sequence[Row]:
        """Writes one row for each place.

        Args:
            places: Ascending places of the corpus, each in [0, rows).
            round_number: 0, 1, ...; draws from `round_seed(seed, round_number)`.
            progress: Told the share of these rows done.
        """


def round_seed(seed: int, round_number: int) -> int:
    """Seed of a round's public randomness; round 0 has the corpus's own, as without a judge."""
    if round_number == 0:
        return seed
    return int(np.random.SeedSequence((seed, round_number)).generate_state(1)[0])


def open_judge(settings: RejectionSettings, public: PublicInputs) -> Judge:
    """Opens the judge a dataset file asks for.

    Args:
        settings: Which judge.
        public: What `settings.public_inputs()` names; `public.engine` where settings name none.

    Raises:
        JudgeError: No engine, language model or public text to judge with.
        EngineError: The judge's engine cannot be opened.
    """
    if settings.judge == "likelihood":
        return LikelihoodJudge(
            _required(public.language_model, "public_language_model"),
            _public_texts(settings, public),
            lowest_quantile=settings.lowest_quantile,
            highest_quantile=settings.highest_quantile,
            max_text_tokens=settings.max_text_tokens,
        )
    engine = public.engine
    if settings.engine is not None:
        from dpsynth_assets.models.engines.opening import open_engine

        engine = open_engine(settings.engine, language_model=public.language_model)
    if engine is None:
        raise JudgeError(
            "Expected an engine that runs the judge, got none; write rejection.engine, with the "
            "model: of an instruction-tuned judge."
        )
    return EngineJudge(
        engine, min_overall=settings.min_overall, max_text_tokens=settings.max_text_tokens
    )


def write_accepted(
    write_rows: RowWriter[Row],
    judge: Judge,
    rows: int,
    settings: RejectionSettings,
    progress: ProgressCallback,
    *,
    text_of: Callable[[Any], str] = str,
) -> tuple[list[Row | None], dict[str, Any]]:
    """Writes rows until the judge accepts one for every place, or the rounds are spent.

    Deterministic where writer and judge are: a verdict depends on its text alone.

    Args:
        write_rows: Writes candidates for places that have no accepted row yet.
        judge: Accepts or rejects.
        rows: Places of the corpus, >= 1.
        settings: `rounds` is read.
        progress: Told the share done, never falling.
        text_of: A candidate's text; candidates are texts unless this says otherwise.

    Returns:
        The accepted row of every place in order, None where there is none; and released facts:
        judge, thresholds, `candidates`, `acceptance_rate` (accepted of candidates), `rounds`,
        `places_left_empty`, `unscored` (blank, or no usable answer), mean scores.

    Raises:
        JudgeError: Not one candidate was accepted, or the judge gives no usable answer.
    """
    accepted: list[Row | None] = [None] * rows
    tally = _Tally()
    empty = list(range(rows))
    for round_number in range(settings.rounds):
        report = _round_progress(progress, round_number, len(empty))
        candidates = write_rows(empty, round_number, report)
        verdicts = _verdicts(judge, [text_of(each) for each in candidates], report)
        for place, candidate, verdict in zip(empty, candidates, verdicts, strict=True):
            tally.add(verdict)
            if verdict.accepted:
                accepted[place] = candidate
        empty = [place for place in empty if accepted[place] is None]
        if not empty:
            break
    if len(empty) == rows:
        raise JudgeError(
            f"Expected rows that the judge accepts, got none in {tally.candidates} candidates; "
            "lower rejection's threshold, or train the generator longer."
        )
    progress(1.0, f"{rows - len(empty)} of {rows} rows accepted")
    return accepted, {**judge.facts, **tally.facts(round_number + 1, len(empty))}


def _verdicts(judge: Judge, texts: Sequence[str], report: ProgressCallback) -> list[Verdict]:
    """Judges texts; those without a word are rejected unseen."""
    worded = [row for row, text in enumerate(texts) if text.strip()]
    verdicts = [Verdict(False, None)] * len(texts)
    if not worded:
        return verdicts
    judged = judge.judge(
        [texts[row] for row in worded],
        lambda share: report(1 - _JUDGING_SHARE * (1 - share), "judging rows"),
    )
    for row, verdict in zip(worded, judged, strict=True):
        verdicts[row] = verdict
    return verdicts


class _Tally:
    """What the judge did, in numbers."""

    def __init__(self) -> None:
        self.candidates = self.accepted = self.unscored = 0
        self._all = self._kept = 0.0

    def add(self, verdict: Verdict) -> None:
        """Counts one verdict."""
        self.candidates += 1
        self.accepted += verdict.accepted
        if verdict.score is None:
            self.unscored += 1
            return
        self._all += verdict.score
        self._kept += verdict.score if verdict.accepted else 0.0

    def facts(self, rounds: int, left_empty: int) -> dict[str, Any]:
        """Released numbers."""
        return {
            "candidates": self.candidates,
            "acceptance_rate": round(self.accepted / self.candidates, 4),
            "rounds": rounds,
            "places_left_empty": left_empty,
            "unscored": self.unscored,
            "mean_score_candidates": round(self._all / max(1, self.candidates - self.unscored), 4),
            "mean_score_accepted": round(self._kept / max(1, self.accepted), 4),
        }


def _round_progress(progress: ProgressCallback, round_number: int, places: int) -> ProgressCallback:
    """Progress of one round: the first is half of the whole, the next half of what remains."""
    start, span = 1 - 0.5**round_number, 0.5 ** (round_number + 1)

    def report(share: float, message: str) -> None:
        progress(start + span * share, f"round {round_number + 1}, {places} rows: {message}")

    return report


def _public_texts(settings: RejectionSettings, public: PublicInputs) -> list[str]:
    """Public documents, a fixed choice."""
    records = _required(public.public_records, "public_corpus")
    texts = [text for text in records["text"].to_list() if text.strip()]
    order = np.random.default_rng(0).permutation(len(texts))[: settings.public_texts]
    return [texts[row] for row in order]


def _required(value: Any, name: str) -> Any:
    if value is None:
        raise JudgeError(
            f"Expected the public artifact {name} to judge rows by, got none. Materialise it in "
            "the public base."
        )
    return value
