"""What a GPU does here: correctness, rounding, speed and memory of every step that runs on one.

    python benchmarks/gpu.py --out build/gpu.jsonl [--seconds 480] [--parts card equality …]
    python benchmarks/gpu.py --table build/gpu.jsonl        # as Markdown

Each part is a process of its own with a time limit and writes what it finds at once (one JSON
object a line). Models have published shapes and random weights. Without a card, or with `--tiny`,
the same code runs at tiny shapes on the processor in two minutes. torch for CUDA, transformers and
numpy have to be there; `on_a_gpu/wheels.txt` names what else is read.
"""

import argparse
import json
import os
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.on_a_gpu import decoding, rounding, training
from benchmarks.on_a_gpu.card import embed, find_nearest, tell_card
from benchmarks.on_a_gpu.cells import make_cells
from benchmarks.on_a_gpu.parts import Part, Tell, run_parts
from benchmarks.on_a_gpu.table import markdown

SMOLLM2 = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}


def equality(device: str, tell: Tell) -> None:
    """Packed decoding beside transformers' own pass, for tiny models of many kinds."""
    from benchmarks.model_equality import differences

    for dtype in ("float32",) if device == "cpu" else ("float32", "bfloat16"):
        tell(**{dtype: differences(device, dtype)})


def exact(device: str, tell: Tell, *, tiny: bool) -> None:
    """The exact decoder in integers, at SmolLM2's shape; without a card in Triton's interpreter."""
    if not find_spec("triton"):
        tell(left_out="triton, which builds of PyTorch for CUDA bring along, is not installed")
        return
    from benchmarks.exact_on_gpu import TINY, measure

    shape, size = (TINY, (3, 5, 2)) if tiny else (SMOLLM2, (256, 500, 32))
    tell(**measure(shape, *size, device))


def parts(*, tiny: bool) -> list[Part]:
    """All parts, the most telling first."""
    return [
        Part("card", 30, tell_card),
        Part("equality", 60, equality),
        Part("exact", 90, partial(exact, tiny=tiny)),
        Part("decoding", 90, partial(decoding.measure, tiny=tiny)),
        *training.parts(tiny=tiny),
        Part("rounding", 60, partial(rounding.measure, tiny=tiny)),
        Part("embedding", 30, partial(embed, tiny=tiny)),
        Part("nearest", 30, partial(find_nearest, tiny=tiny)),
        Part("cells", 240, partial(make_cells, minutes=3)),
    ]


def main() -> None:
    arguments = parse()
    if arguments.table is not None:
        lines = arguments.table.read_text(encoding="utf-8").splitlines()
        print(markdown([json.loads(line) for line in lines]))
        return
    device = "cuda" if Path("/dev/nvidia0").exists() else "cpu"
    if device == "cpu":  # read when triton is imported
        os.environ["TRITON_INTERPRET"] = "1"
    _import_libraries()
    tiny = arguments.tiny or device == "cpu"
    every = parts(tiny=tiny)
    asked = arguments.parts or [each.name for each in every]
    chosen = [each for each in every if {each.name, each.name.split(",")[0]} & set(asked)]
    records = run_parts(chosen, device, arguments.out, arguments.seconds)
    print(markdown(records))
    raise SystemExit(any("failed" in each for each in records))


def _import_libraries() -> None:
    """Imports before forking what every part needs; nothing here touches the card."""
    import transformers  # noqa: F401
    from transformers import Gemma2ForCausalLM, LlamaForCausalLM  # noqa: F401

    import dpsynth_assets.methods.private_prediction.loop
    import dpsynth_assets.models.fine_tuning
    import dpsynth_assets.models.transformers_decoder.decoder  # noqa: F401


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("build/gpu.jsonl"))
    parser.add_argument("--seconds", type=float, default=480, help="for all parts")
    parser.add_argument("--parts", nargs="+", help="names; all by default")
    parser.add_argument("--tiny", action="store_true", help="tiny shapes, also on a card")
    parser.add_argument("--table", type=Path, help="prints the figures of a file, measures nothing")
    return parser.parse_args()


if __name__ == "__main__":
    main()
