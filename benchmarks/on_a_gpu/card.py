"""The card itself, and the steps that are short beside decoding: embedding and nearest rows."""

import statistics
import time
from collections.abc import Callable

import numpy as np

from benchmarks.on_a_gpu.parts import Tell


def tell_card(device: str, tell: Tell) -> None:
    """Names the card and measures its two ceilings: bytes a second and operations a second."""
    import torch
    import transformers

    tell(torch=torch.__version__, transformers=transformers.__version__)
    if device == "cpu":
        tell(device="a processor", capability=torch.backends.cpu.get_cpu_capability())
        return
    found = torch.cuda.get_device_properties(0)
    tell(device=found.name, memory_gib=round(found.total_memory / 2**30, 1))
    source = torch.randint(255, (1 << 31,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copy = seconds_of(lambda: target.copy_(source), device)
    tell(copied_bytes_a_second=2 * source.numel() / copy)
    left, right = (torch.randn(8192, 8192, device=device, dtype=torch.bfloat16) for _ in "ab")
    tell(bfloat16_operations_a_second=2 * 8192**3 / seconds_of(lambda: left @ right, device))
    small, wide = (
        torch.randint(-127, 128, (8192, 8192), dtype=torch.int8, device=device) for _ in "ab"
    )
    product = seconds_of(lambda: torch._int_mm(small, wide.t()), device)
    tell(int8_operations_a_second=2 * 8192**3 / product)


def seconds_of(run: Callable[[], object], device: str, repetitions: int = 5) -> float:
    """Median seconds of a call, after two that warm up."""
    import torch

    taken = []
    for _ in range(repetitions + 2):
        started = time.perf_counter()
        run()
        if device != "cpu":
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - started)
    return statistics.median(taken[2:])


def embed(device: str, tell: Tell, *, tiny: bool) -> None:
    """Texts a second: private ones as they are embedded here, and public ones that share passes."""
    import torch

    from dpsynth_assets.models.text_embedder import TextEmbedder, _PackedBert

    del device
    torch.set_num_threads(min(8, torch.get_num_threads()))
    texts = _texts(64 if tiny else 4096)
    embedder = TextEmbedder(max_tokens=128)
    found: dict[str, object] = {"made_by": embedder.made_by}
    for name, count, public in (
        ("private", 64 if tiny else 512, False),
        ("public", len(texts), True),
    ):
        embedder.embed(texts[:16], public=public)
        started = time.perf_counter()
        embedder.embed(texts[:count], public=public)
        found[f"{name}_texts_a_second"] = count / (time.perf_counter() - started)
    packed = _PackedBert(128)
    started = time.perf_counter()
    for _ in packed.embed(texts, public=False):
        pass
    found["processor_texts_a_second"] = len(texts) / (time.perf_counter() - started)
    tell(**found)


def _texts(count: int) -> list[str]:
    words = "the of claim order water late small report train river after week asked".split()  # noqa: SIM905
    draw = np.random.default_rng(0)
    return [" ".join(draw.choice(words, draw.integers(20, 100))) for _ in range(count)]


def find_nearest(device: str, tell: Tell, *, tiny: bool) -> None:
    """Records a second whose nearest of 2,000 candidates is found (processors do this)."""
    from dpsynth_assets.privacy.nearest import PublicRows, nearest_rows

    del device
    draw = np.random.default_rng(0)
    records, candidates = (2_000, 50) if tiny else (100_000, 2_000)
    private, public = (
        draw.standard_normal((n, 384), dtype=np.float32) for n in (records, candidates)
    )
    for rows in (private, public):
        rows[:] = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    among = PublicRows(public, distance=True)
    started = time.perf_counter()
    nearest_rows(private, among)
    tell(records_a_second=records / (time.perf_counter() - started), candidates=candidates)
