"""Judges of written text: a language model with a rubric, or the likelihood of public text.

A judge sees public and released text only, so what it decides is post-processing of releases and
costs nothing.
"""

from dpsynth_assets.models.judging.engine_judge import EngineJudge
from dpsynth_assets.models.judging.judge import Judge, JudgeError, Verdict
from dpsynth_assets.models.judging.likelihood_judge import LikelihoodJudge
from dpsynth_assets.models.judging.rubric import RubricScores, parse_scores, rubric_prompt

__all__ = [
    "EngineJudge",
    "Judge",
    "JudgeError",
    "LikelihoodJudge",
    "RubricScores",
    "Verdict",
    "parse_scores",
    "rubric_prompt",
]
