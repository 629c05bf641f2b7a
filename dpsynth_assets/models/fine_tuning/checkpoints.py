"""State of an unfinished run on disk: trained parameters, moments of AdamW, steps, losses, charge.

Frozen parameters are not kept: they are public, and come with the model that a run starts from.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    import torch

STATE_FILE = "state.json"
TENSORS_FILE = "tensors.safetensors"
MOMENTS = ("exp_avg", "exp_avg_sq")

PublicLoss = tuple[int, float]
"""A number of finished steps, and the loss on public text after them."""


class RunCheckpoint(Protocol):
    """Place where an unfinished run keeps its state; the `Checkpoint` of staged methods is one."""

    @property
    def saved(self) -> Path | None:
        """Folder of the last saved checkpoint."""

    def filled(self, write: Callable[[Path], object]) -> Path:
        """An owner-only folder, after `write` has put files into it."""

    def save(self, folder: Path) -> None:
        """Makes a filled folder the last checkpoint, whole or not at all."""


class Kept(NamedTuple):
    """Values that a checkpoint holds beside tensors.

    Attributes:
        step: Finished steps.
        public_losses: Losses measured until then.
    """

    step: int = 0
    public_losses: tuple[PublicLoss, ...] = ()


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

    def save(self, checkpoint: RunCheckpoint, kept: Kept) -> None:
        """Saves the state after `kept.step` steps."""
        from safetensors.torch import save_file

        tensors = {}
        for name, parameter in self._trained().items():
            tensors[f"model.{name}"] = parameter.detach().cpu().contiguous()
            for moment in MOMENTS:
                if moment in self.optimizer.state[parameter]:
                    value = self.optimizer.state[parameter][moment]
                    tensors[f"{moment}.{name}"] = value.cpu().contiguous()
        state = {**kept._asdict(), "charge": dict(self.charge)}
        content = json.dumps(state, indent=2) + "\n"

        def write(folder: Path) -> None:
            save_file(tensors, folder / TENSORS_FILE)
            (folder / STATE_FILE).write_text(content, encoding="utf-8")

        checkpoint.save(checkpoint.filled(write))

    def load(self, checkpoint: RunCheckpoint) -> Kept:
        """Reads the last checkpoint back; at the first start there is none, and no step done.

        Raises:
            ValueError: If it belongs to a run with another charge, settings or model.
        """
        import torch
        from safetensors import safe_open

        folder = checkpoint.saved
        if folder is None:
            return Kept()
        state = _read_state(folder)
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
        losses = ((int(at), float(loss)) for at, loss in state["public_losses"])
        return Kept(step, tuple(losses))

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


def kept_learning_rate(checkpoint: RunCheckpoint) -> float | None:
    """Reads the peak rate that an interrupted run began with; None at the first start.

    A run that chose its rate itself must keep it, whatever it would choose today.
    """
    if checkpoint.saved is None:
        return None
    return float(_read_state(checkpoint.saved)["charge"]["settings"]["learning_rate"])


def _read_state(folder: Path) -> dict[str, Any]:
    state: dict[str, Any] = json.loads((folder / STATE_FILE).read_text(encoding="utf-8"))
    return state
