"""Methods whose language model is the cohort's own fine-tuned generator, not the public one.

The weights were released under DP and paid for by their own method, so all that runs on them is as
public as they are: texts that they write replace those of the public model.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import Field

from dpsynth_assets.datasets.fields import Declaration
from dpsynth_assets.datasets.public_spec import EngineSpec
from dpsynth_assets.methods.base import CohortTerms, Method
from dpsynth_assets.methods.inputs import PublicInputs
from dpsynth_assets.methods.stages import MethodPlan
from dpsynth_assets.models.engines.protocol import open_engine, opened_once
from dpsynth_assets.models.language_model import load_language_model
from dpsynth_assets.models.prompt_templates import prompted


class GeneratorChoice(Declaration):
    """The setting that names a generator; a config inherits it beside its method's own."""

    generator: str = Field(default="ctcl", pattern=r"^[a-z0-9_]+$")
    """Folder of the DP method whose fine-tuned language model takes the place of the public one."""


class OnGenerator(Method[Any]):
    """What a method gains in front of its own class: its public model is the fine-tuned one.

    **Privacy** Every stage names the charge of the corpus that the generator wrote, so plan, label
    and lineage state both; the mechanism and its cost are those of the method alone.
    """

    reads_weights = True

    @property
    def corpora(self) -> tuple[str, ...]:
        """The method whose generator is the model."""
        return (self.config.generator,)

    def plan(self, target_epsilon: float) -> MethodPlan:
        """Refuses an engine with a model of its own; else the method's plan."""
        engine = self.terms.engine
        has_engine = any(stage.engine is not None for stage in self.stages())
        if has_engine and (engine.is_endpoint or engine.model is not None):
            raise ValueError(
                f"engine: expected one that serves the generator of {self.config.generator}, got "
                "one with a model of its own. Drop model, or take kind transformers or vllm."
            )
        return super().plan(target_epsilon)  # type: ignore[safe-super]


def on_generator(
    public: PublicInputs, weights: Path, terms: CohortTerms, engine: EngineSpec | None
) -> PublicInputs:
    """Puts fine-tuned weights in the place of the public language model.

    Args:
        public: What else a stage or the writing reads.
        weights: Folder of the released weights.
        terms: Prompt templates of the cohort.
        engine: What the stage or the writing writes through; it runs the weights.
    """
    own = public.language_model
    model = opened_once(load_language_model, str(weights), dtype=own.dtype, device=own.device)
    return replace(
        public,
        language_model=prompted(model, terms.prompts),
        engine=None if engine is None else open_engine(engine, language_model=model),
        reopened=None,  # Workers would open the base's model.
    )
