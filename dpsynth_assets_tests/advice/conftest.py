"""A machine whose speed is known."""

from dataclasses import fields

from dpsynth_assets.advice.speed import MachineSpeed

SECONDS = {"read": 1e-3, "step": 0.05, "written": 3e-3, "embedded": 1e-4, "trained": 0.02}


def speed_of(factor=1.0):
    """A speed whose amounts all take so many times as long."""
    known = {name: factor * seconds for name, seconds in SECONDS.items()}
    known |= {"other": factor, "tokens_a_character": 0.25, "parameters": 135e6}
    assert set(known) == {each.name for each in fields(MachineSpeed)}
    return MachineSpeed(**known)
