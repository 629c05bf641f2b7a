"""Trainings that workers take part in, in tests; processes import them by name."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dpsynth_assets.methods.fine_tuning.downstream import NextWordInputs
from dpsynth_assets.methods.fine_tuning.private_training import TrainingInputs, TrainingStart
from dpsynth_assets.methods.inputs import PrivateInputs

RECORDS = 64


@dataclass(frozen=True)
class Many:
    """Counts that are too many to be sent."""

    def __call__(self, private: PrivateInputs) -> np.ndarray:
        """One for each of 20,000 bins, whatever the records are."""
        return np.ones(20_000, dtype=np.int64)


@dataclass(frozen=True)
class Watched(TrainingInputs):
    """Notes which process opens the model or works on a part, and fails where it is told to.

    Attributes:
        config: Settings of the causal model.
        notes: Folder of the notes.
    """

    config: object
    notes: Path

    def _note(self, line: str) -> int:
        with (self.notes / "lines").open("a") as file:
            file.write(f"{line} {os.getpid()}\n")
        return (self.notes / "lines").read_text().count(line)

    def open(self):
        self._note("open")
        return NextWordInputs(self.config).open()

    def examples(self, start, private):
        call = self._note("part")
        order = self.notes / "quote"
        if order.exists() and call >= int(order.read_text()):
            order.unlink()
            raise ValueError(private.records["text"][0])
        return NextWordInputs(self.config).examples(start, private)


class Marks(TrainingInputs):
    """A model whose gradient has a 1 in the place of each record that was drawn."""

    def open(self):
        import torch

        return TrainingStart(
            model=torch.nn.Linear(RECORDS, 1, bias=False), loss=OwnWeight(), name=""
        )

    def examples(self, start, private):
        return [int(re.search(r"\d+", text)[0]) for text in private.records["text"]]


class OwnWeight:
    """The loss of record i is the i-th weight."""

    def __call__(self, model, examples):
        import torch

        return model(torch.eye(RECORDS)[examples][:, None, :])[:, 0, 0]

    def length(self, example):
        return 1
