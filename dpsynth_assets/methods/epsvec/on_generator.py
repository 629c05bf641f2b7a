"""EPSVec on the cohort's fine-tuned generator: steering on top of LoRA."""

from typing import ClassVar, Literal

from dpsynth_assets.methods.epsvec.config import EpsVecConfig
from dpsynth_assets.methods.epsvec.method import EpsVec
from dpsynth_assets.methods.on_generator import GeneratorChoice, OnGenerator


class EpsVecOnGeneratorConfig(GeneratorChoice, EpsVecConfig):
    """Those of EPSVec, and whose generator is steered."""

    method: Literal["epsvec_on_generator"] = "epsvec_on_generator"  # type: ignore[assignment]


class EpsVecOnGenerator(OnGenerator, EpsVec):
    """Fixed shots and dataset vectors of a generator that was fine-tuned on the same cohort.

    Vectors then point from what the fine-tuned model writes to the records: to what fine-tuning
    has left over. Its budget is what fine-tuning leaves, and the label states both together.
    """

    name: ClassVar[str] = "epsvec_on_generator"
    title: ClassVar[str] = "EPSVec on a fine-tuned generator"
    config_type = EpsVecOnGeneratorConfig
