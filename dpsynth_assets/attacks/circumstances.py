"""What the result of an audit or attack depends on besides its settings: code, libraries, machine.

Audits and attacks run on made-up or public records, so nothing else can change what they find. A
result that was found under equal circumstances and equal settings need not be found again.
"""

import hashlib
import os
import platform
import sys
from functools import cache
from pathlib import Path

from dpsynth_assets.storage.identity import version_of

NUMERICAL = (
    *("ATEN_", "CUDA_", "DNNL_", "DPSYNTH_GPU", "MKL_", "NPY_", "NVIDIA_", "OMP_"),
    *("ONEDNN_", "OPENBLAS_", "PYTORCH_", "TORCH_", "TRANSFORMERS_"),
)
"""Beginnings of the names of environment variables that choose kernels or their threads."""

_PACKAGE = Path(__file__).parents[1]
_MACHINE_SAYS = (Path("/proc/cpuinfo"), Path("/proc/driver/nvidia/version"))
_DEVICES = Path("/proc/driver/nvidia/gpus")
_OF_THE_CPU = (
    *("vendor_id", "cpu family", "model", "model name", "stepping", "microcode", "flags"),
    *("CPU implementer", "CPU architecture", "CPU variant", "CPU part", "Features"),
)


@cache
def circumstances() -> str:
    """Digest of the code of this package, all installed libraries, and the machine's kernels.

    It is taken once a process, as the process runs the code that it has loaded.
    """
    return version_of(code_digest(_PACKAGE), _libraries(), _machine())


def code_digest(package: Path) -> str:
    """Digest of all Python files of a package, names included."""
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(package)}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def _libraries() -> list[str]:
    """Names of the metadata folders of installed packages, e.g. `numpy-2.3.1.dist-info`."""
    folders = {
        Path(place) for place in sys.path if place.endswith(("site-packages", "dist-packages"))
    }
    found = {entry.name for folder in folders if folder.is_dir() for entry in folder.iterdir()}
    return sorted(name for name in found if name.endswith((".dist-info", ".egg-info")))


def _machine() -> list[object]:
    """Python, processor with its instruction sets, cores, GPUs, and what chooses kernels."""
    chosen = {name: value for name, value in os.environ.items() if name.startswith(NUMERICAL)}
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    devices = _DEVICES.rglob("information") if _DEVICES.is_dir() else ()
    texts = [_lasting(path) for path in (*_MACHINE_SAYS, *sorted(devices))]
    return [sys.version, platform.machine(), platform.processor(), cores, chosen, texts]


def _lasting(path: Path) -> list[str]:
    """Lines of a file that stay as they are: a processor's, without its frequency of the moment."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    if path.name != "cpuinfo":
        return lines
    return sorted({line for line in lines if line.partition(":")[0].strip() in _OF_THE_CPU})


def code_behind(kind: type) -> str:
    """Digest of the package that a class of another distribution is in; empty for our own."""
    import inspect

    if kind.__module__.startswith(f"{_PACKAGE.name}."):
        return ""
    return code_digest(Path(inspect.getfile(kind)).parent)
