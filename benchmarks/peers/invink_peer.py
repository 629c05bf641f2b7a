"""Runs the InvisibleInk package as it is; run by `run.sh` in an environment of its own.

Timed: its loop over documents, in float32 (twice as fast on a CPU as its default bfloat16). Left
out: loading, and its accounting after each document, half a second of bisection.
"""

import json
import sys

import invink  # noqa: F401
import torch
from common import BATCH, DOCUMENTS, MODEL, TOKENS, WORK, Clock, Recorder

torch.set_num_threads(1)
module = sys.modules["invink.generate"]
clock, recorder = Clock(), Recorder("invink")
module.tqdm = clock
torch.cuda.empty_cache = clock.tick  # called once a token, and idle on a CPU
module.get_epsilon = lambda **_: float("nan")
recorder.wrap(module, "get_prompt")
recorder.wrap(module, "get_clip")
written = module.generate(
    json.loads((WORK / "texts.json").read_text())[: DOCUMENTS * (BATCH - 1)],
    str(MODEL),
    dataset_desc="messages to a help desk",
    batch_size=BATCH,
    num=DOCUMENTS,
    max_toks=TOKENS,
    dtype="float32",
    device_map=-1,
    allow_download=False,
)
recorder.save(recorder.notes["get_prompt"], recorder.notes["get_clip"][0])
clock.save("invink", sum(written.lens))
