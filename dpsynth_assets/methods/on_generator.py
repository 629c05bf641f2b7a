"""Methods whose language model is the cohort's own fine-tuned generator, not the public one.

The weights were released under DP and paid for by their own method, so all that runs on them is as
public as they are: texts that they write replace those of the public model.
"""

from dataclasses import replace
from typing import Any

from pydantic import Field

from dpsynth_assets.methods.base import Method, Settings, refused
from dpsynth_assets.methods.inputs import PublicInputs
from dpsynth_assets.methods.stages import MethodPlan, Stage, Writing
from dpsynth_assets.models.engines.protocol import open_engine, opened_once
from dpsynth_assets.models.language_model import load_language_model
from dpsynth_assets.models.prompt_templates import prompted


class GeneratorChoice(Settings):
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
        if self._has_engine and (engine.is_endpoint or engine.model is not None):
            return refused(
                self,
                f"engine: expected one that serves the generator of {self.config.generator}, got "
                "one with a model of its own. Drop model, or take kind transformers or vllm.",
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
                **self._calls(stage),
            )
            for stage in own
        )

    def writing(self) -> Any:
        """The method's own, with the generator."""
        own: Writing | None = super().writing()
        if own is None:
            return None
        return replace(
            own, write=lambda public, *asked: own.write(self._on_generator(public), *asked)
        )

    def _calls(self, stage: Stage) -> dict[str, Any]:
        """What a stage asks and runs, given the generator in the place of the public model."""
        on, make, draws = self._on_generator, stage.make, stage.draws
        calls: dict[str, Any] = {
            "check": lambda public: stage.check(on(public)),
            "tested": lambda public: stage.tested(on(public)),
        }
        if make is not None:
            calls["make"] = lambda public, *rest: make(on(public), *rest)
        if draws is not None:
            calls["draws"] = lambda run: draws(run._replace(public=on(run.public)))
        return calls

    @property
    def _has_engine(self) -> bool:
        own = super().stages()  # type: ignore[safe-super]
        return any(stage.engine is not None for stage in own)

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
        place = str(public.generators[folder])
        model = opened_once(load_language_model, place, dtype=own.dtype, device=own.device)
        engine = None
        if self._has_engine:
            engine = open_engine(self.terms.engine, language_model=model)
        own = prompted(model, self.terms.prompts)
        return replace(public, language_model=own, engine=engine, opens_engine=None)
