"""What the training of a generator starts from and makes of a record, in any process."""

from dataclasses import dataclass, field

from dpsynth_assets.files.shared_models import local_copy
from dpsynth_assets.methods.fine_tuning.conditions import (
    Conditioning,
    TrainingPairs,
    training_pairs,
)
from dpsynth_assets.methods.fine_tuning.config import GeneratorConfig
from dpsynth_assets.methods.fine_tuning.generators import (
    PairLoss,
    encode_pairs,
    fresh_generator,
    trainable_generator,
)
from dpsynth_assets.methods.fine_tuning.private_training import TrainingStart
from dpsynth_assets.methods.inputs import PrivateInputs
from dpsynth_assets.models.conditional_generator import ConditionalGenerator
from dpsynth_assets.models.fine_tuning import TokenExample


@dataclass(frozen=True, kw_only=True)
class GeneratorInputs:
    """Public weights and settings, without an open model; see `split_training.TrainingInputs`.

    Attributes:
        source: Folder or hub id of the public weights.
        device: Torch device.
        pretrained: Whether training starts from them, or from random ones of their shape.
        config: Settings of the method.
        known: How conditions are written.
    """

    source: str
    device: str
    pretrained: bool
    config: GeneratorConfig = field(repr=False)
    known: Conditioning = field(repr=False)

    def open(self) -> TrainingStart:
        """Opens a private copy of the weights, which training may change."""
        generator = fresh_generator(
            local_copy(self.source),
            self.device,
            pretrained=self.pretrained,
            templates=self.known.templates,
            prompt_tokens=self.config.prompt_tokens,
        )
        return TrainingStart(
            model=trainable_generator(generator, self.config),
            loss=PairLoss(generator),
            name=generator.name,
        )

    def examples(self, start: TrainingStart, private: PrivateInputs) -> list[TokenExample]:
        """Pairs of the records, as token ids; records without text or label are left out."""
        return self.encoded(start, training_pairs(private, self.known))

    def encoded(self, start: TrainingStart, pairs: TrainingPairs) -> list[TokenExample]:
        """Pairs as token ids."""
        return encode_pairs(generator_of(start), pairs, self.config.max_document_tokens)


def generator_of(start: TrainingStart) -> ConditionalGenerator:
    """The generator whose model a start trains."""
    loss = start.loss
    if not isinstance(loss, PairLoss):
        raise TypeError(f"Expected a start of GeneratorInputs.open, got {type(loss).__name__}.")
    return loss.generator
