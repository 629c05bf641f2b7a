"""Differentially private synthetic text, orchestrated as Dagster assets.

`run_method` runs one method without Dagster; `PublicBase` names the public text and models that it
builds on. Both are loaded when first asked for, so that opening the web UI stays quick.
"""

from typing import TYPE_CHECKING, Any

from dpsynth_assets import loaded as loaded  # Before all else: it notes the time.

if TYPE_CHECKING:
    from dpsynth_assets.method_run import MethodRun, run_method
    from dpsynth_assets.public_base import PublicBase

__all__ = ["MethodRun", "PublicBase", "run_method"]


def __getattr__(name: str) -> Any:
    """Loads what `__all__` names."""
    if name == "PublicBase":
        from dpsynth_assets.public_base import PublicBase

        return PublicBase
    if name in ("MethodRun", "run_method"):
        from dpsynth_assets import method_run

        return getattr(method_run, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
