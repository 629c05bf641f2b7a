"""Records what the result of an audit or attack depends on: code, libraries, machine.

Audits and attacks run on made-up or public records, so nothing else can change what they find. A
result that was found under equal circumstances and equal settings need not be found again.
"""

import hashlib
import inspect
import os
import platform
import secrets
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from dpsynth_assets.files.kept import local_copy, version_of
from dpsynth_assets.loaded import LOADED_AT

NUMERICAL = (
    *("ATEN_", "CUDA_", "DNNL_", "DPSYNTH_GPU", "FBGEMM_", "MKL_", "NPY_", "NVIDIA_", "OMP_"),
    *("ONEDNN_", "OPENBLAS_", "PYTORCH_", "TORCH_", "TRANSFORMERS_", "VLLM_"),
)
"""Beginnings of the names of environment variables that choose kernels or their threads."""

_PACKAGE = Path(__file__).parents[1]
_VERSIONED = {_PACKAGE.name, "dagster", "pydantic"}
_MACHINE_SAYS = (Path("/proc/cpuinfo"), Path("/proc/driver/nvidia/version"))
_DEVICES = Path("/proc/driver/nvidia/gpus")
_OF_THE_CPU = (
    *("vendor_id", "cpu family", "model", "model name", "stepping", "microcode", "flags"),
    *("CPU implementer", "CPU architecture", "CPU variant", "CPU part", "Features"),
)


def circumstances() -> str:
    """Digest of the code of this package, all installed libraries, and the machine's kernels.

    The files must be those that this process has loaded. Where one was changed since, the process
    has circumstances of its own: it finds no kept result, and keeps none that another one finds.
    """
    return version_of(_loaded(_PACKAGE), _around())


@cache
def _around() -> str:
    return version_of(_libraries(), machine())


def _loaded(package: Path) -> str:
    """Digest of the code of a package; no other one is equal where a file is newer than this run.

    The time of the last change of a file's entry is compared: it is later than any copy of an older
    file, too.
    """
    if any(path.stat().st_ctime_ns >= LOADED_AT for path in _sources(package)):
        return secrets.token_hex(16)
    return _digest_once(package)


@cache
def _digest_once(package: Path) -> str:
    return code_digest(package)


def code_digest(package: Path) -> str:
    """Digest of all Python files of a package, names included, or of one module."""
    digest = hashlib.sha256()
    for path in _sources(package):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(package.parent)}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def _sources(package: Path) -> list[Path]:
    if package.is_file():
        return [package]
    return sorted(path for path in package.rglob("*") if path.suffix in {".py", ".yaml"})


def _libraries() -> list[str]:
    """Names of the metadata folders of installed packages, e.g. `numpy-2.3.1.dist-info`."""
    folders = {
        Path(place) for place in sys.path if place.endswith(("site-packages", "dist-packages"))
    }
    found = {entry.name for folder in folders if folder.is_dir() for entry in folder.iterdir()}
    return sorted(name for name in found if name.endswith((".dist-info", ".egg-info")))


def machine() -> list[object]:
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
    """Digest of the packages of other distributions that a class and its bases are in.

    Our own is part of the `circumstances`; of Dagster and Pydantic these hold the versions.
    """
    return code_of(base.__module__ for base in kind.__mro__)


def code_of(modules: Iterable[str]) -> str:
    """Digest of the packages of other distributions that modules are in, as above."""
    names = {module.partition(".")[0] for module in modules}
    foreign = sorted(names - _VERSIONED - sys.stdlib_module_names)
    return version_of([(name, list(map(_loaded, _places(name)))) for name in foreign])


def _places(name: str) -> list[Path]:
    """Folders of a package, which may be spread over several, or the file of a module."""
    module = sys.modules.get(name)
    if (folders := getattr(module, "__path__", None)) is not None:
        return sorted(map(Path, folders))
    file = None if module is None else inspect.getsourcefile(module)
    return [] if file is None else [Path(file)]


def files_behind(manifest: Mapping[str, Any]) -> list[list[object]]:
    """Names, sizes and times of change of the files of the model that a manifest names.

    A declared folder keeps its name when other weights are put into it. For a name of the hub the
    files are those of its snapshot on this machine.

    Args:
        manifest: Describes a model: its `path`, or its `model`; neither for a packaged one.
    """
    name = manifest.get("path") or manifest.get("model")
    if not name:
        return []
    place = Path(local_copy(str(name)))
    if not place.is_dir():
        place = _snapshot(str(name))
    found = sorted(path for path in place.rglob("*") if path.is_file()) if place.is_dir() else []
    facts = [(path.relative_to(place), path.stat()) for path in found]
    return [[str(path), state.st_size, state.st_mtime_ns] for path, state in facts]


def _snapshot(name: str) -> Path:
    """Folder of a model of the hub in the cache of this machine; one that is not there else."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, local_files_only=True))
    except (OSError, ValueError):  # Not there, or no name of the hub.
        return Path("/nonexistent")
