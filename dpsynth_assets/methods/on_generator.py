"""Methods whose language model is the cohort's own fine-tuned generator, not the public one.

The weights were released under DP and paid for by their own method, so all that runs on them is as
public as they are: texts that they write stand where those of the public model stood.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, Field

from dpsynth_assets.methods.base import Method
from dpsynth_assets.methods.inputs import (
    Checkpoint,
    PrivateInputs,
    ProgressCallback,
    PublicInputs,
)
from dpsynth_assets.methods.stages import MethodPlan, Stage, StageRelease, SyntheticCorpus
from dpsynth_assets.models.engines.opening import open_engine
from dpsynth_assets.models.kept import kept
from dpsynth_assets.models.language_model import LanguageModel, load_language_model
from dpsynth_assets.models.prompt_templates import prompted
from dpsynth_assets.privacy.release import Release


class GeneratorChoice(BaseModel):
    """The setting that names a generator; a config inherits it beside its method's own."""

    generator: str = Field(
        default="ctcl",
        pattern=r"^[a-z0-9_]+$",
        description="Folder of the DP method whose fine-tuned language model takes the place of "
        "the public one.",
    )


class OnGenerator(Method[Any]):
    """What a method gains in front of its own class: its public model is the fine-tuned one.

    **Privacy** Every stage names the charge of the corpus that the generator wrote, so plan, label
    and lineage state both; the mechanism and its cost are those of the method alone.
    """

    reads_generator: ClassVar[bool] = True

    @property
    def builds_on(self) -> tuple[str, ...]:
        """The method whose generator is the model."""
        return (self.config.generator,)

    def plan(self, target_epsilon: float) -> MethodPlan:
        """Refuses an engine with a model of its own; else the method's plan."""
        engine = self.terms.engine
        if self.uses_engine and (engine.is_endpoint or engine.model is not None):
            return self.refused(
                f"engine: expected one that serves the generator of {self.config.generator}, got "
                "one with a model of its own. Drop model, or take kind transformers or vllm."
            )
        return super().plan(target_epsilon)  # type: ignore[safe-super]

    def stages(self) -> tuple[Stage, ...]:
        """The method's own, which read the generator."""
        own = super().stages()  # type: ignore[safe-super]
        return tuple(
            replace(
                stage,
                reads_corpora=True,
                # Workers open the base's model, not the generator.
                in_parts=stage.in_parts and not (stage.in_model or stage.draws_passes),
            )
            for stage in own
        )

    def check_public(self, stage: Stage, public: PublicInputs) -> None:
        """Asks for the generator, then what the method asks for of its model."""
        super().check_public(stage, self._on_generator(public))

    def rests_on(self, stage: Stage, public: PublicInputs) -> Mapping[str, Any]:
        """States what was tested of the generator."""
        return super().rests_on(stage, self._on_generator(public))

    def make_public(
        self, stage: Stage, public: PublicInputs, folder: Path, progress: ProgressCallback
    ) -> StageRelease:
        """Runs a public stage on the generator."""
        return super().make_public(stage, self._on_generator(public), folder, progress)

    def release(
        self,
        stage: Stage,
        private: PrivateInputs,
        public: PublicInputs,
        checkpoint: Checkpoint,
        progress: ProgressCallback,
    ) -> Release[StageRelease]:
        """Runs a paid stage on the generator."""
        return super().release(stage, private, self._on_generator(public), checkpoint, progress)

    def write(self, public: PublicInputs, rows: int, progress: ProgressCallback) -> SyntheticCorpus:
        """Writes with the generator."""
        return super().write(self._on_generator(public), rows, progress)

    def _on_generator(self, public: PublicInputs) -> PublicInputs:
        """The public inputs with the fine-tuned weights behind the same prompts.

        Raises:
            ValueError: There are none.
        """
        folder = self.config.generator
        if folder not in public.generators:
            raise ValueError(
                f"Expected the fine-tuned language model of {folder}, got none. Publish its corpus "
                "first, or name another method's folder as `generator`."
            )
        own = public.language_model
        model = _loaded(str(public.generators[folder]), own.dtype, own.device)
        engine = None
        if self.uses_engine:
            engine = open_engine(self.terms.engine, language_model=model)
        own = prompted(model, self.terms.prompts)
        return replace(public, language_model=own, engine=engine, opens_engine=None)


@kept(2)
def _loaded(folder: str, dtype: str, device: str) -> LanguageModel:
    """Opens weights once a process, for all stages that read them."""
    return load_language_model(folder, dtype=dtype, device=device)
