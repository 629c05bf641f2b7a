"""Runs the public reimplementation of Amin et al. 2024 as it is, from its own folder.

Its surroundings are adapted, not its code: the model's name, the sign-in to a hub, the attribute
`vocab_size` that not every model has, and the embedding and scoring after generation, which would
download models. Timed: its loop over documents. It loads weights as bfloat16, which a CPU runs at
half the speed: here they are read as float32.
"""

import contextlib
import csv
import json
import os
import runpy
import sys
from types import ModuleType

import torch
from common import BATCH, DOCUMENTS, MODEL, TOKENS, WORK, Clock, Recorder

FOLDER = WORK / "amin"
NOISE, THRESHOLD = 2.0, 0.7


class GenerationDoneError(Exception):
    """Raised where the script would go on to score its texts."""


def done(*_, **__):
    raise GenerationDoneError


def main() -> None:
    torch.set_num_threads(1)
    write_texts()
    os.chdir(FOLDER)
    sys.path.insert(0, str(FOLDER))
    clock, recorder = Clock(), Recorder("amin")
    adapt(clock, recorder)
    sys.argv = ["generate_amin.py", *arguments()]
    counted = count_tokens()
    with contextlib.suppress(GenerationDoneError):
        runpy.run_path("generate_amin.py", run_name="__main__")
    private, public = (recorder.notes[f"get_{kind}_prompt"] for kind in ("prv", "pub"))
    prompts = []
    for document in range(DOCUMENTS):
        prompts += private[document * (BATCH - 1) : (document + 1) * (BATCH - 1)]
        prompts.append(public[document])
    recorder.save(prompts, recorder.notes["get_clip"][0])
    clock.save("amin", sum(map(len, counted)))


def write_texts() -> None:
    texts = json.loads((WORK / "texts.json").read_text())[: DOCUMENTS * BATCH]
    target = FOLDER / "data" / "tab" / "tab_procedure.csv"
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("w", newline="") as file:
        csv.writer(file).writerows([["text"], *([text] for text in texts)])


def adapt(clock: Clock, recorder: Recorder) -> None:
    import huggingface_hub
    import tqdm
    import transformers

    for name, attribute in (("eval_utils", None), ("sentence_transformers", "SentenceTransformer")):
        stub = ModuleType(name)
        if attribute:
            setattr(stub, attribute, done)
        sys.modules[name] = stub
    huggingface_hub.login = lambda *_: None
    tqdm.tqdm = clock
    torch.cuda.empty_cache = clock.tick  # called once a token, and idle on a CPU
    load = transformers.AutoModelForCausalLM.from_pretrained

    def load_float32(*names, **options):
        model = load(*names, **(options | {"dtype": torch.float32}))
        model.vocab_size = model.config.vocab_size
        return model

    transformers.AutoModelForCausalLM.from_pretrained = load_float32
    import utils

    utils.MODELS["tiny"] = str(MODEL)
    utils.embed_txts = done
    utils.cdp_eps = lambda *_: float("nan")
    for name in ("get_prv_prompt", "get_pub_prompt", "get_clip"):
        recorder.wrap(utils, name)


def count_tokens() -> list[torch.Tensor]:
    """Collects the token sequences that the script decodes, one a document."""
    from transformers import PreTrainedTokenizerFast

    sequences: list[torch.Tensor] = []
    decode = PreTrainedTokenizerFast.decode

    def counting(tokenizer, tokens, **settings):
        sequences.append(tokens)
        return decode(tokenizer, tokens, **settings)

    PreTrainedTokenizerFast.decode = counting
    return sequences


def arguments() -> list[str]:
    settings = {
        "model": "tiny", "dataset": "tab", "folder": WORK / "results", "num": DOCUMENTS, "eps": 40,
        "batch": BATCH, "minibatch": BATCH, "tokens": TOKENS, "ptokens": TOKENS, "sigma": NOISE,
        "theta": THRESHOLD, "gpu": -1, "write_every": DOCUMENTS,
    }  # fmt: skip
    return [part for name, value in settings.items() for part in (f"--{name}", str(value))]


if __name__ == "__main__":
    main()
