"""State of an unfinished run on disk: trained parameters, moments of AdamW, steps, charge.

Frozen parameters are not kept: they are public, and come with the model that a run starts from.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

STATE_FILE = "state.json"
TENSORS_FILE = "tensors.safetensors"
MOMENTS = ("exp_avg", "exp_avg_sq")


class RunCheckpoint(Protocol):
    """Where an unfinished run keeps its state; the `Checkpoint` of staged methods is one."""

    @property
    def saved(self) -> Path | None:
        """Folder of the last saved checkpoint."""

    def scratch(self) -> Path:
        """An empty owner-only folder."""

    def save(self, scratch: Path) -> None:
        """Makes `scratch` the last checkpoint, whole or not at all."""


@dataclass(frozen=True)
class RunState:
    """One model and optimizer whose state can be written and read back.

    Attributes:
        model: Trainable parameters are saved under their names.
        optimizer: AdamW over exactly those parameters.
        charge: What the run is charged for and how it trains (JSON): resuming under another
            charge is refused.
    """

    model: Any
    optimizer: "torch.optim.Optimizer"
    charge: Mapping[str, Any]

    def save(self, checkpoint: RunCheckpoint, step: int) -> None:
        """Saves the state after `step` steps."""
        from safetensors.torch import save_file

        folder = checkpoint.scratch()
        tensors = {}
        for name, parameter in self._trained().items():
            tensors[f"model.{name}"] = parameter.detach().cpu().contiguous()
            for moment in MOMENTS:
                if moment in self.optimizer.state[parameter]:
                    value = self.optimizer.state[parameter][moment]
                    tensors[f"{moment}.{name}"] = value.cpu().contiguous()
        save_file(tensors, folder / TENSORS_FILE)
        state = {"format": 1, "step": step, "charge": dict(self.charge)}
        (folder / STATE_FILE).write_text(json.dumps(state, indent=2) + "\n", encoding="utf-8")
        checkpoint.save(folder)

    def load(self, checkpoint: RunCheckpoint) -> int:
        """Reads the last checkpoint back; returns its step, 0 where there is none.

        Raises:
            ValueError: If it belongs to a run with another charge, settings or model.
        """
        import torch
        from safetensors import safe_open

        if checkpoint.saved is None:
            return 0
        folder = checkpoint.saved
        state = json.loads((folder / STATE_FILE).read_text(encoding="utf-8"))
        if state["charge"] != json.loads(json.dumps(dict(self.charge))):
            raise ValueError(
                "Expected a checkpoint of this run, got one charged or set up otherwise. Restore "
                "the settings it was started with."
            )
        step = int(state["step"])
        with safe_open(folder / TENSORS_FILE, "pt") as file, torch.no_grad():
            for name, parameter in self._trained().items():
                parameter.copy_(file.get_tensor(f"model.{name}"))
                if step:
                    self.optimizer.state[parameter] = self._moments(file, name, parameter, step)
        return step

    def _trained(self) -> "dict[str, torch.nn.Parameter]":
        return {name: each for name, each in self.model.named_parameters() if each.requires_grad}

    def _moments(self, file: Any, name: str, parameter: Any, step: int) -> dict[str, Any]:
        import torch

        found = {
            moment: file.get_tensor(f"{moment}.{name}").to(parameter.device) for moment in MOMENTS
        }
        on_device = self.optimizer.param_groups[0].get("fused") and parameter.is_cuda
        device = parameter.device if on_device else "cpu"
        found["step"] = torch.tensor(float(step), dtype=torch.float32, device=device)
        return found


class CheckpointFolders:
    """A `RunCheckpoint` in a folder of its own, for runs outside a staged method."""

    def __init__(self, folder: Path) -> None:
        """Uses, or creates, an owner-only folder."""
        self._folder = Path(folder)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    @property
    def saved(self) -> Path | None:
        """The last saved checkpoint."""
        found = sorted(each for each in self._folder.iterdir() if each.name.startswith("saved-"))
        return found[-1] if found else None

    def scratch(self) -> Path:
        """A fresh folder."""
        return Path(tempfile.mkdtemp(prefix="scratch-", dir=self._folder))

    def save(self, scratch: Path) -> None:
        """Renames it, after which older ones are removed."""
        last = self.saved
        number = 0 if last is None else int(last.name.removeprefix("saved-")) + 1
        for file in [*scratch.iterdir(), scratch]:
            _flush(file)
        scratch.rename(self._folder / f"saved-{number:09d}")
        _flush(self._folder)
        for each in self._folder.iterdir():
            if each.name != f"saved-{number:09d}":
                shutil.rmtree(each)


def _flush(path: Path) -> None:
    """Waits until a file or folder is on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
