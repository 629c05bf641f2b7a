"""EPSVec on the cohort's fine-tuned generator: steering on top of LoRA."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar, Literal

from dpsynth_assets.methods.candidates import Candidate, DeclaredFacts, behind
from dpsynth_assets.methods.epsvec.config import EpsVecConfig, vector_settings
from dpsynth_assets.methods.epsvec.method import EpsVec
from dpsynth_assets.methods.epsvec.writing import VectorRows
from dpsynth_assets.methods.inputs import PublicInputs
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

    @classmethod
    def candidates(cls, facts: DeclaredFacts) -> tuple[Candidate, ...]:
        """After ctcl, with what it leaves of the budget."""
        settings = {"generator": "ctcl", **vector_settings(facts)}
        return (Candidate(line="epsvec_on_ctcl", settings=settings, **behind("ctcl")),)

    @contextmanager
    def open_rows(self, public: PublicInputs) -> Iterator[VectorRows]:
        """Opens released shots and vectors on the generator they were made with."""
        with super().open_rows(self._on_generator(public)) as rows:
            yield rows
