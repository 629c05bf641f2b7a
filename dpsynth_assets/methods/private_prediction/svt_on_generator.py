"""The sparse-vector test behind the cohort's fine-tuned generator: what it predicts is free."""

from typing import ClassVar, Literal

from dpsynth_assets.methods.candidates import Candidate, DeclaredFacts
from dpsynth_assets.methods.on_generator import GeneratorChoice, OnGenerator
from dpsynth_assets.methods.private_prediction.config import MeanSvtConfig
from dpsynth_assets.methods.private_prediction.mean_svt import MeanSvt


class MeanSvtOnGeneratorConfig(GeneratorChoice, MeanSvtConfig):
    """Those of `mean_svt`, and whose generator is the public channel."""

    method: Literal["mean_svt_on_generator"] = "mean_svt_on_generator"  # type: ignore[assignment]


class MeanSvtOnGenerator(OnGenerator, MeanSvt):
    """Amin et al. 2024, Algorithm 1, with a fine-tuned generator in the place of the public model.

    The generator proposes public tokens nearer to the records than the public model does, so the
    test passes more often and fewer tokens are paid. Its budget is what fine-tuning leaves, and the
    label states both together.
    """

    name: ClassVar[str] = "mean_svt_on_generator"
    title: ClassVar[str] = "Private prediction with a generator's free tokens"
    config_type = MeanSvtOnGeneratorConfig
    unadvised = "builds on another method's generator, which is paid for beside it"
    attacks = ()  # The attack plants keys before any generator exists; `mean_svt` draws alike.

    @classmethod
    def candidates(cls, facts: DeclaredFacts) -> tuple[Candidate, ...]:
        """None: `mean_svt` is weighed."""
        del facts
        return ()
