"""Judges of written text: the likelihood of public text, or a language model with a rubric.

A judge sees public and released text only, so what it decides is post-processing of releases and
costs nothing.

The likelihood under a public language model needs no instruction-tuned model: texts that the model
finds less likely than nearly all public text are broken sentences; texts it finds more likely than
any are loops and clichés.

A form makes every model answer a rubric with scores, also one that does not understand the
question. So such a judge scores plain sentences and the same words out of order before it scores a
row.

**Source** Rubric: Banayeeanzade et al. 2026 (EPSVec), appendix B.6.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dpsynth_assets.models.engines.protocol import Engine, Provenance, Sampling, ShareCallback
from dpsynth_assets.models.language_model import losses_after, passes_by_length
from dpsynth_assets.models.prompt_templates import PromptedModel, PromptTemplates

if TYPE_CHECKING:
    from dpsynth_assets.models.language_model import LanguageModel


class JudgeError(ValueError):
    """A judge cannot judge: one line, expected, got, remedy."""


@dataclass(frozen=True)
class Verdict:
    """Judgement of one text.

    Attributes:
        accepted: Whether the text is kept.
        score: The judge's measure of it; None where it gave none.
    """

    accepted: bool
    score: float | None


MAX_TEXT_TOKENS = 1024
"""A text is judged by its first tokens."""

_LOGITS_BYTES = 2**28
_TOKENS_PER_FORWARD = 4096
_ROWS_PER_FORWARD = 64
"""Bounds of one pass: its logits' memory, its padded tokens, its texts. One text always passes."""


class LikelihoodJudge:
    """Keeps texts whose mean log-likelihood per token is one of public text's, above a quantile.

    Loops are likelier than any public text.

    Args:
        language_model: Public language model; a text is read as a document without label.
        public_texts: Public documents, at least ten, that thresholds are taken from.
        lowest_quantile: Share of public text that is less likely than any text kept, in [0, 1).

    Attributes:
        lowest: Least mean log-likelihood per token of a text that is kept, in nats.
        highest: Greatest one.
        facts: Name of the judge, its quantile and the thresholds.

    Raises:
        JudgeError: Too few public texts.

    **Privacy** Model and thresholds come from public text.
    """

    def __init__(
        self,
        language_model: "LanguageModel",
        public_texts: Sequence[str],
        *,
        lowest_quantile: float = 0.05,
    ) -> None:
        self._language_model = language_model
        public = self.log_likelihoods(public_texts)
        public = public[np.isfinite(public)]
        if len(public) < 10:
            raise JudgeError(
                f"Expected at least 10 public texts to compute a threshold, got {len(public)}; "
                "give the public base more text."
            )
        self.lowest, self.highest = map(float, np.quantile(public, (lowest_quantile, 1.0)))
        self.facts: Mapping[str, Any] = {
            "judge": "likelihood",
            "judge_model": language_model.name,
            "quantile_lowest": lowest_quantile,
            "threshold_lowest": round(self.lowest, 4),
            "threshold_highest": round(self.highest, 4),
            "threshold_texts": len(public),
        }

    def judge(self, texts: Sequence[str], progress: ShareCallback | None = None) -> list[Verdict]:
        """Scores every text; one without tokens is rejected."""
        scores = self.log_likelihoods(texts, progress)
        return [
            Verdict(self.lowest <= score <= self.highest, score if math.isfinite(score) else None)
            for score in scores.tolist()
        ]

    def log_likelihoods(
        self, texts: Sequence[str], progress: ShareCallback | None = None
    ) -> np.ndarray:
        """Mean log-probability of each text's own tokens, in nats: (N,) float64, <= 0.

        A text without tokens gets minus infinity.
        """
        model = self._language_model
        start = PromptedModel(model).prompt_ids("", (), 1)
        ids = [[*start, *model.encode(text)[:MAX_TEXT_TOKENS]] for text in texts]
        scores = np.full(len(texts), -np.inf)
        written = [row for row in range(len(ids)) if len(ids[row]) > len(start)]
        tokens = min(_TOKENS_PER_FORWARD, _LOGITS_BYTES // (4 * model.vocabulary_size))
        done = 0
        for rows in passes_by_length(written, ids, tokens, _ROWS_PER_FORWARD):
            losses, counted = losses_after(model, [ids[row] for row in rows], len(start))
            scores[rows] = -losses / counted
            done += len(rows)
            if progress is not None:
                progress(done / len(written))
        return scores


RUBRIC = """\
You are a precise writing-quality evaluator. Evaluate the provided text and return ONLY a valid \
JSON object that follows this schema:
{{
  "fluency": <integer 1-5>,
  "grammar": <integer 1-5>,
  "coherence": <integer 1-5>,
  "overall": <integer 1-10>
}}

Rules:
1) Output pure JSON (no markdown, no extra text).
2) Use integers only for scores.

Evaluate the following synthetic text using G-Eval-style criteria:
- Fluency (1-5): smoothness and flow; natural phrasing, no awkwardness.
- Grammar (1-5): correctness of syntax, tense, agreement, punctuation.
- Coherence (1-5): logical organization; ideas connect and progress sensibly.
- Overall (1-10): holistic quality as writing (not factual accuracy).

Text:
{text}

JSON:"""
"""The paper's system prompt and instructions in one turn: endpoints and templates all take one."""

HIGHEST = {"fluency": 5, "grammar": 5, "coherence": 5, "overall": 10}
"""Criteria and the best score of each; the worst is 1."""

ANSWER_SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {
            name: {"type": "integer", "minimum": 1, "maximum": best}
            for name, best in HIGHEST.items()
        },
        "required": list(HIGHEST),
        "additionalProperties": False,
    }
)
"""What an answer is: whole numbers within their bounds."""

ANSWER_TOKENS = 96
"""Enough for the object, a fence around it and a word before it."""

_OVERALL = re.compile(
    r'"overall"\s*:\s*"?\s*(\d+(?:\.\d+)?)\s*(?:/\s*\d+\s*)?"?\s*[,}]', re.IGNORECASE
)


def rubric_prompt(text: str) -> str:
    """The rubric around one text."""
    return RUBRIC.format(text=text)


def overall_score(answer: str) -> float | None:
    """Reads the last overall score within its bounds out of the JSON of an answer.

    Words around the object, fences, numbers written as text and `7/10` are forgiven. The last
    score counts: models think aloud first.

    Returns:
        A number in [1, 10]; None where there is none.
    """
    scores = map(float, reversed(_OVERALL.findall(answer)))
    return next((score for score in scores if 1 <= score <= HIGHEST["overall"]), None)


PLAIN = (
    "The library opens at nine on weekdays. On Saturdays it closes at noon, so please bring your "
    "books back before then.",
    "We ordered two soups and a salad. The soups came hot and quickly, but the salad took half an "
    "hour and the waiter forgot the bread.",
    "My new bicycle is light and easy to ride. I use it every morning to get to the station, which "
    "takes about ten minutes.",
    "The council voted on Monday to repair the old bridge. Work will begin in spring and should "
    "end before the first snow.",
)
"""Written for this purpose; public."""


def shuffled(text: str) -> str:
    """The words of a text in a fixed order that is not theirs: every third one, three times."""
    words = text.split()
    return " ".join(word for start in (2, 0, 1) for word in reversed(words[start::3]))


def require_scores(scores: Sequence[float | None], name: str) -> None:
    """Refuses a judge none of whose answers held a score (JudgeError)."""
    if not any(scores):
        raise JudgeError(
            f"Expected JSON with overall in 1-10 from the judge {name}, got none "
            f"in {len(scores)} answers; take an instruction-tuned model, or judge: likelihood."
        )


def require_discernment(scores: Sequence[float | None], name: str) -> dict[str, float]:
    """Compares a judge's scores of the control texts.

    Args:
        scores: Of plain texts, then of shuffled ones.
        name: Name of the judge.

    Returns:
        Mean overall score of plain and of shuffled texts; nothing where an answer held no scores,
        of which the rows themselves will tell.

    Raises:
        JudgeError: It does not score plain texts above shuffled ones.
    """
    overall = [each for each in scores if each is not None]
    if len(overall) < len(scores):
        return {}
    half = len(PLAIN)
    plain, mixed = sum(overall[:half]) / half, sum(overall[half:]) / half
    if plain <= mixed:
        raise JudgeError(
            f"Expected a judge that scores plain sentences above the same words out of order, got "
            f"{plain:g} and {mixed:g} from {name}; take an instruction-tuned model, or judge: "
            "likelihood."
        )
    return {"control_plain": plain, "control_shuffled": mixed}


_CHARACTERS_PER_TOKEN = 4
"""Of English text: how a bound in tokens reaches an endpoint, whose tokenizer is its own."""


class EngineJudge:
    """Asks a model for a JSON object of scores and keeps texts whose overall score is high enough.

    Answers are greedy, so that the same text gets the same verdict. A model that runs here writes
    nothing but such an object; an endpoint is asked to. A text whose answer holds no scores all the
    same is rejected and counted as unscored: it was not found good. Before the first row the judge
    scores control texts, and is refused where it cannot tell sentences from shuffled words.

    Args:
        engine: Runs the judge; an endpoint is asked too, since texts are public or released.
        min_overall: Least overall score of a text that is kept, in [1, 10].

    **Source** EPSVec, appendix B.6 (rubric) and D.4 (threshold 6).
    """

    def __init__(self, engine: Engine, *, min_overall: float = 6.0) -> None:
        self._engine, self._min_overall = engine, min_overall
        self._prompted, self._before = _prompted(engine), engine.spent
        self._control_scores: Sequence[float | None] = ()
        self._facts: dict[str, Any] = {
            "judge": "rubric",
            "judge_model": engine.name,
            "threshold_overall": min_overall,
        }

    @property
    def facts(self) -> Mapping[str, Any]:
        """Name of the judge and its threshold; once it judged, its controls and what it cost."""
        spent = self._engine.spent_since(self._before)
        return self._facts | {f"judge_{name}": number for name, number in spent.items()}

    def check(self) -> None:
        """Has the control texts scored, before there are rows.

        Raises:
            JudgeError: No answer held scores, or they came out in the wrong order.
            EngineError: The engine failed.
        """
        self._control()
        require_scores(self._control_scores, self._engine.name)

    def _control(self) -> None:
        """Compares the control texts, once."""
        if not self._control_scores:
            self._control_scores = self._scores([*PLAIN, *map(shuffled, PLAIN)])
            self._facts |= require_discernment(self._control_scores, self._engine.name)

    def judge(self, texts: Sequence[str], progress: ShareCallback | None = None) -> list[Verdict]:
        """Asks for every text's scores; an answer without them rejects its text.

        Raises:
            JudgeError: Not one answer held scores, or the controls came out in the wrong order.
            EngineError: The engine failed.
        """
        if not texts:
            return []
        self._control()
        scores = self._scores(texts, progress)
        require_scores(scores, self._engine.name)
        return [
            Verdict(False, None) if each is None else Verdict(each >= self._min_overall, each)
            for each in scores
        ]

    def _scores(
        self, texts: Sequence[str], progress: ShareCallback | None = None
    ) -> list[float | None]:
        answers = self._engine.generate(
            [self._prompt(text) for text in texts],
            Sampling(temperature=0.0, max_new_tokens=ANSWER_TOKENS, json_schema=ANSWER_SCHEMA),
            provenance=Provenance.RELEASED,
            progress=progress,
        )
        return [overall_score(answer.text) for answer in answers]

    def _prompt(self, text: str) -> str | list[int]:
        """Token ids in the model's chat template, where it runs here and has one; else text."""
        if self._prompted is None:
            return rubric_prompt(text[: _CHARACTERS_PER_TOKEN * MAX_TEXT_TOKENS])
        return self._prompted.prompt_ids("", [text], MAX_TEXT_TOKENS)


Judge = LikelihoodJudge | EngineJudge
"""Accepts or rejects texts, each by itself: a verdict depends on no other text.

**Privacy** Judges see public text and rows sampled from what was released. Choosing among such rows
is post-processing, regardless of the judge. No judge may be given a private record.
"""


def _prompted(engine: Engine) -> PromptedModel | None:
    """The engine's language model with the rubric around each text; None for an endpoint."""
    language_model = getattr(engine, "language_model", None)
    if language_model is None:
        return None
    templates = PromptTemplates(
        private=rubric_prompt("{examples}"),
        use_chat_template=bool(language_model.tokenizer.chat_template),
    )
    return PromptedModel(language_model, templates)
