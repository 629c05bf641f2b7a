"""DP-Adam beside plain AdamW and Opacus: speed and peak memory, in one run.

    python benchmarks/dp_training.py [--models small base gpt2] [--repetitions 3] [--out FILE]
        [--ways plain DP-Adam "Opacus hooks"] [--logical RECORDS] [--threads 2]
    python benchmarks/dp_training.py --device cuda --models "base, long" --repetitions 1
        --ways plain DP-Adam "plain, bfloat16" "DP-Adam, bfloat16" "DP-Adam, exact sums"
    python benchmarks/dp_training.py --models smollm2 --threads 2 --repetitions 1
        --ways "DP-Adam, integers" "DP-Adam, exact sums" "Opacus hooks"
    python benchmarks/dp_training.py --device cuda --agreement     # is a clipped sum right there?

Every measurement is a process of its own, so that peak memory is its own; ways alternate, and
medians are told. Model, examples, micro-batches and logical batch are the same for all ways. Speed
is examples a second over whole logical steps (passes, clipping, noise, optimizer), after one that
warms up: processor seconds with one thread, wall seconds with more, which every way uses as it can
(plain and DP-Adam on parts side by side; Opacus within each operation). Wall seconds of a busy
machine mean nothing. Peak memory counts from the loaded libraries on. The noise of a step takes the
same time whatever its batch, so its share is told, and speed without it: what a logical batch of
4096 approaches. Opacus draws its noise from torch's seeded generator, which is faster and no
protection against whoever knows the seed. On a GPU wall seconds are taken, and peak memory is what
the allocator handed out at most; "base, long" is BART-base with a logical batch of 4,096. "smollm2"
has the shape of SmolLM2-135M and trains adapters of rank 8 beside frozen layers, which are in 8-bit
integers in "DP-Adam, integers".
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

WAYS = ("plain", "DP-Adam", "DP-Adam, exact sums", "Opacus hooks")
INTEGERS = "DP-Adam, integers"
ON_A_GPU = ("plain, bfloat16", "DP-Adam, bfloat16", "Opacus hooks, bfloat16")
SHAPES = {
    "small": {"width": 128, "layers": 2, "heads": 4, "feed_forward": 512, "vocabulary": 4096},
    "small wide": {
        "width": 192,
        "layers": 3,
        "heads": 6,
        "feed_forward": 768,
        "vocabulary": 4096,
    },
    "base": {"width": 768, "layers": 6, "heads": 12, "feed_forward": 3072, "vocabulary": 50265},
    "base, long": {
        "width": 768,
        "layers": 6,
        "heads": 12,
        "feed_forward": 3072,
        "vocabulary": 50265,
    },
    "gpt2": {"width": 192, "layers": 4, "heads": 6, "feed_forward": 768, "vocabulary": 4096},
    "gpt2 small": {
        "width": 768,
        "layers": 12,
        "heads": 12,
        "feed_forward": 3072,
        "vocabulary": 50257,
    },
    "smollm2": {
        "width": 576,
        "layers": 30,
        "heads": 9,
        "groups": 3,
        "feed_forward": 1536,
        "vocabulary": 49152,
        "lora_rank": 8,
    },
    "llama 1b": {
        "width": 2048,
        "layers": 16,
        "heads": 32,
        "groups": 8,
        "feed_forward": 8192,
        "vocabulary": 128256,
    },
    "llama tiny": {
        "width": 64,
        "layers": 2,
        "heads": 4,
        "groups": 2,
        "feed_forward": 128,
        "vocabulary": 512,
    },
}
SHAPES |= {
    f"{name}, adapters": SHAPES[name] | {"lora_rank": 8} for name in ("llama 1b", "llama tiny")
}
LOADS = {
    "small": {"logical": 256, "micro_batch": 32, "source": 32, "target": 96, "steps": 2},
    "small wide": {"logical": 256, "micro_batch": 32, "source": 32, "target": 96, "steps": 1},
    "base": {"logical": 64, "micro_batch": 8, "source": 32, "target": 96, "steps": 1},
    "base, long": {"logical": 4096, "micro_batch": 32, "source": 64, "target": 512, "steps": 1},
    "gpt2": {"logical": 128, "micro_batch": 32, "source": 32, "target": 96, "steps": 2},
    "gpt2 small": {"logical": 16, "micro_batch": 4, "source": 32, "target": 96, "steps": 1},
    "smollm2": {"logical": 256, "micro_batch": 32, "source": 16, "target": 48, "steps": 1},
    "llama 1b": {"logical": 32, "micro_batch": 4, "source": 32, "target": 224, "steps": 2},
    "llama 1b, adapters": {
        "logical": 64,
        "micro_batch": 16,
        "source": 32,
        "target": 224,
        "steps": 2,
    },
    "llama tiny": {"logical": 4, "micro_batch": 2, "source": 4, "target": 12, "steps": 1},
    "llama tiny, adapters": {"logical": 4, "micro_batch": 2, "source": 4, "target": 12, "steps": 1},
}
LARGE = ("base", "gpt2 small", "smollm2")  # one step is long enough to hide what a first one costs
ON_A_PROCESSOR = tuple(
    name for name in SHAPES if name not in ("base, long", "smollm2") and "llama" not in name
)
CLIP_BOUND = 1.0


def main() -> None:
    arguments = parse()
    if arguments.agreement:
        print(json.dumps(agreement(arguments.device), indent=2))
        return
    if arguments.child:
        print(json.dumps(measured(arguments.models[0], arguments.child, arguments)))
        return
    report = {}
    for name in arguments.models:
        report[name] = compared(name, arguments)
        tell(name, report[name], load_of(name, arguments))
        if arguments.out is not None:
            arguments.out.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def compared(name: str, arguments) -> dict:
    """All ways of one model, alternating; medians of each figure."""
    runs = {way: [] for way in arguments.ways}
    for _ in range(arguments.repetitions):
        for way, found in runs.items():
            if not any("error" in each for each in found):
                found.append(child(name, way, arguments))
    return {way: medians(found) for way, found in runs.items()}


def medians(runs: list[dict]) -> dict:
    broken = [each for each in runs if "error" in each]
    if broken:
        return broken[0]
    return {key: statistics.median(each[key] for each in runs) for key in runs[0]}


def child(name: str, way: str, arguments) -> dict:
    threads = str(arguments.threads)
    command = [sys.executable, __file__, "--child", way, "--models", name, "--threads", threads]
    command += ["--logical", str(load_of(name, arguments)["logical"]), "--device", arguments.device]
    environment = os.environ | {"OMP_NUM_THREADS": threads, "HF_HUB_OFFLINE": "1"}
    environment.setdefault("GOMP_SPINCOUNT", "10000")
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["no message"])[-1][:200]}
    return json.loads(done.stdout.strip().splitlines()[-1])


def load_of(name: str, arguments) -> dict:
    """The load of a model, with another logical batch where one is asked for."""
    asked = {} if arguments.logical is None else {"logical": arguments.logical}
    return LOADS[name] | asked


def tell(name: str, found: dict, load: dict) -> None:
    print(
        f"{name}: {SHAPES[name]}, logical batch {load['logical']} in parts of "
        f"{load['micro_batch']}, {load['source']} + {load['target']} tokens"
    )
    for way, figures in found.items():
        plain = found.get("plain, bfloat16" if "bfloat16" in way else "plain", {})
        if "error" in figures:
            print(f"  {way:24s}does not run: {figures['error']}")
            continue
        line = (
            f"  {way:24s}{figures['examples_per_second']:8.1f} examples/s"
            f"{figures['peak_mib']:8.0f} MiB   noise {figures['noise_share']:4.0%} of the time"
        )
        if plain and "error" not in plain and not way.startswith("plain"):
            speed = figures["examples_per_second"] / plain["examples_per_second"]
            quiet = figures["without_noise"] / plain["examples_per_second"]
            memory = figures["peak_mib"] / plain["peak_mib"]
            line += f"   {speed:.2f}x plain ({quiet:.2f}x without noise), memory {memory:.2f}x"
        print(line, flush=True)
    if "error" not in found.get("Opacus hooks", {"error": ""}) and "DP-Adam" in found:
        speeds = [found[way]["examples_per_second"] for way in ("DP-Adam", "Opacus hooks")]
        print(f"  DP-Adam / Opacus hooks  {speeds[0] / speeds[1]:.2f}x", flush=True)


def measured(name: str, way: str, arguments) -> dict:
    """One way of one model, in this process."""
    import torch
    import transformers

    threads, load, device = arguments.threads, load_of(name, arguments), arguments.device
    torch.set_num_threads(threads)
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    warm_libraries(way)
    before = peak_bytes(device)
    with torch.device(device):  # a billion random weights take a processor a quarter of a minute
        model = new_model(SHAPES[name], gpt2=name.startswith("gpt2"))
    if way == INTEGERS:
        from dpsynth_assets.models.fine_tuning.adapters import multiply_in_integers

        multiply_in_integers(model)
    examples = random_examples(load, SHAPES[name]["vocabulary"])
    loss = CountedLoss(new_loss(name))
    timer = NoiseTimer()
    run = trainer(way, model, examples, loss, load)
    if name not in LARGE:  # on a GPU every new shape costs its first time
        run(load["micro_batch" if device == "cpu" else "logical"], 1)
    loss.examples, timer.seconds = 0, 0.0
    clock = time.process_time if threads == 1 and device == "cpu" else time.perf_counter
    synchronize(device)
    start = clock()
    run(load["logical"], load["steps"])
    synchronize(device)
    elapsed = clock() - start
    noise = timer.seconds / threads
    return {
        "examples_per_second": loss.examples / elapsed,
        "without_noise": loss.examples / (elapsed - noise),
        "noise_share": noise / elapsed,
        "peak_mib": (peak_bytes(device) - before) / 2**20,
        "parameters": sum(each.numel() for each in model.parameters()),
    }


def warm_libraries(way: str) -> None:
    """Loads what a way needs, so that it does not count as memory of training."""
    import numpy  # noqa: F401
    from transformers import BartForConditionalGeneration, GPT2LMHeadModel  # noqa: F401

    from dpsynth_assets.models.fine_tuning.training import fine_tune_privately  # noqa: F401

    if way.startswith("Opacus hooks"):
        import opacus  # noqa: F401


def peak_bytes(device: str) -> int:
    if device != "cpu":
        import torch

        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def synchronize(device: str) -> None:
    if device != "cpu":
        import torch

        torch.cuda.synchronize()


class CountedLoss:
    """A loss that counts the examples it is asked for."""

    def __init__(self, loss) -> None:
        self._loss = loss
        self._lock = threading.Lock()
        self.examples = 0

    def __call__(self, model, examples):
        """Counts and passes on."""
        with self._lock:
            self.examples += len(examples)
        return self._loss(model, examples)

    def length(self, example) -> int:
        """As the loss."""
        return self._loss.length(example)


class NoiseTimer:
    """Processor seconds spent in the sampler of privacy noise."""

    def __init__(self) -> None:
        from dpsynth_assets.privacy import dp_sgd

        self.seconds = 0.0
        self._lock = threading.Lock()
        original = dp_sgd.gaussian_like

        def timed(reference, deviation):
            start = time.thread_time()
            try:
                return original(reference, deviation)
            finally:
                with self._lock:
                    self.seconds += time.thread_time() - start

        dp_sgd.gaussian_like = timed


def trainer(way: str, model, examples, loss, load):
    """Returns a function that runs some logical steps of a size."""
    if way.startswith("Opacus hooks"):
        narrow = "bfloat16" in way
        return opacus_trainer(model, examples, InBfloat16(loss) if narrow else loss, load)
    from dpsynth_assets.models.fine_tuning.sources import FineTuningSettings
    from dpsynth_assets.models.fine_tuning.training import fine_tune_privately
    from dpsynth_assets.privacy.dp_sgd import DpSgdMechanism
    from dpsynth_assets.privacy.guarantees import NeighboringRelation
    from dpsynth_assets.privacy.per_example import GRADIENT_SLACK, Products, most_in_company

    alone = "exact" in way or way == INTEGERS
    settings = FineTuningSettings(
        learning_rate=1e-4,
        micro_batch=load["micro_batch"],
        products=Products.FLOAT64 if alone else Products.NATIVE,
    )

    loss = InBfloat16(loss) if "bfloat16" in way else loss
    if way.startswith("plain"):
        return plain_trainer(model, examples, loss, load)

    def run(logical: int, steps: int) -> None:
        mechanism = DpSgdMechanism(
            l2_bound=CLIP_BOUND,
            noise_multiplier=1.0,
            sampling_probability=logical / len(examples),
            steps=steps,
            expected_batch_size=logical,
            relation=NeighboringRelation.ADD_REMOVE,
            most_in_company=0 if alone else most_in_company(logical, GRADIENT_SLACK),
            gradient_slack=GRADIENT_SLACK,  # Speed alone is measured: bfloat16 needs far more.
        )
        fine_tune_privately(model, examples, loss, mechanism, settings)

    return run


class InBfloat16:
    """A loss whose passes round products to bfloat16."""

    def __init__(self, loss) -> None:
        self._loss, self.length = loss, loss.length

    def __call__(self, model, examples):
        """As the loss."""
        import torch

        device = next(model.parameters()).device.type
        with torch.autocast(device, dtype=torch.bfloat16):
            return self._loss(model, examples)


def plain_trainer(model, examples, loss, load):
    """AdamW on mean gradients; parts of a batch side by side on the threads there are."""
    import numpy as np
    import torch

    from dpsynth_assets.models.fine_tuning.sources import micro_batches, part_size
    from dpsynth_assets.privacy.cpu import one_thread_each, useful_threads

    trained = [each for each in model.eval().parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, weight_decay=0.1, fused=True)
    threads = useful_threads(trained, torch.get_num_threads())

    def run(logical: int, steps: int) -> None:
        def share(part):
            total = loss(model, part).sum() / logical
            return torch.autograd.grad(total, trained, allow_unused=True)

        size = part_size(logical, load["micro_batch"], threads)
        for _ in range(steps):
            batch = np.random.default_rng().choice(len(examples), logical, replace=False)
            optimizer.zero_grad()
            with one_thread_each(threads) as workers:
                for found in workers.map(share, micro_batches(examples, batch, loss, size)):
                    for parameter, gradient in zip(trained, found, strict=True):
                        if gradient is not None:
                            grown = parameter.grad
                            parameter.grad = gradient if grown is None else grown.add_(gradient)
            optimizer.step()

    return run


class SequenceToSequenceLoss:
    """Mean losses of an encoder-decoder's targets."""

    def __init__(self, pad_token_id: int, start_token_id: int) -> None:
        self._pad, self._start = pad_token_id, start_token_id

    def __call__(self, model, examples):
        """Runs encoder and decoder."""
        from dpsynth_assets.models.language_model import IGNORED, mean_token_losses, padded

        device = next(model.parameters()).device
        rows = {
            "input_ids": padded([each.inputs for each in examples], self._pad),
            "attention_mask": padded([[1] * len(each.inputs) for each in examples], 0),
            "decoder_input_ids": padded(
                [[self._start, *each.targets[:-1]] for each in examples], self._pad
            ),
        }
        inputs = {name: each.to(device) for name, each in rows.items()}
        labels = padded([each.targets for each in examples], IGNORED).to(device)
        return mean_token_losses(model(**inputs, use_cache=False).logits, labels)

    def length(self, example) -> int:
        """Target tokens, whose logits dominate, and half of the source's."""
        return len(example.targets) + len(example.inputs) // 2


class WithPositions:
    """Passes GPT-2 its positions once an example: Opacus needs the first axis to be the batch."""

    def __init__(self, model) -> None:
        self._model = model
        self.parameters = model.parameters

    def __call__(self, **inputs):
        """Runs the model."""
        import torch

        if "decoder_input_ids" not in inputs:
            tokens = inputs["input_ids"]
            places = torch.arange(tokens.shape[1], device=tokens.device)
            inputs["position_ids"] = places.expand_as(tokens).contiguous()
        return self._model(**inputs)


def opacus_trainer(model, examples, loss, load):
    """Per-example gradients in memory, by hooks; clipping and noise by its optimizer."""
    import warnings

    import torch
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    from dpsynth_assets.models.fine_tuning.sources import micro_batches
    from dpsynth_assets.privacy.poisson_sampling import poisson_sample

    warnings.simplefilter("ignore")
    wrapped = GradSampleModule(model.train(), loss_reduction="sum")
    optimizer = DPOptimizer(
        torch.optim.AdamW(wrapped.parameters(), lr=1e-4, weight_decay=0.1, fused=True),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        expected_batch_size=load["logical"],
    )

    def run(logical: int, steps: int) -> None:
        for _ in range(steps):
            batch = poisson_sample(len(examples), logical / len(examples))
            parts = list(micro_batches(examples, batch, loss, load["micro_batch"]))
            for index, part in enumerate(parts):
                optimizer.zero_grad()
                optimizer.signal_skip_step(do_skip=index < len(parts) - 1)
                loss(WithPositions(wrapped), part).sum().backward()
                optimizer.step()

    return run


def new_loss(name: str):
    from dpsynth_assets.models.fine_tuning.sources import CausalLoss

    kind = CausalLoss if name.startswith(("gpt2", "smollm2", "llama")) else SequenceToSequenceLoss
    return kind(pad_token_id=1, start_token_id=2)


def random_examples(load: dict, vocabulary: int) -> list:
    """Four logical batches of documents, from half the full length on."""
    import numpy as np

    from dpsynth_assets.models.fine_tuning.sources import TokenExample

    generator = np.random.default_rng(0)
    lengths = generator.integers(load["target"] // 2, load["target"], 4 * load["logical"])
    return [
        TokenExample(
            generator.integers(3, vocabulary, load["source"]).tolist(),
            generator.integers(3, vocabulary, length).tolist(),
        )
        for length in lengths
    ]


def agreement(device: str) -> dict:
    """Largest error of a clipped sum on a device against one example at a time in float64.

    Relative to the norm of the sum.
    """
    import torch

    from dpsynth_assets.privacy.per_example import LossOfPart, PerExampleGradients, Products

    torch.manual_seed(0)
    shape = {"width": 64, "layers": 2, "heads": 2, "feed_forward": 256, "vocabulary": 512}
    model, loss = new_model(shape).double().eval(), new_loss("base")
    examples = random_examples({"logical": 2, "source": 12, "target": 20}, shape["vocabulary"])
    expected = one_by_one(model, examples, loss)
    model, found = model.float().to(device), {}
    for name, products, narrow in (
        ("float32", Products.NATIVE, False),
        ("float32, exact sums", Products.FLOAT64, False),
        ("bfloat16", Products.NATIVE, True),
    ):

        def losses(model, narrow=narrow):
            with torch.autocast(device, dtype=torch.bfloat16, enabled=narrow):
                return loss(model, examples)

        parts = [LossOfPart(len(examples), losses)]
        sums, _ = PerExampleGradients(model, products).private_clipped_sums(parts, CLIP_BOUND)
        flat = torch.cat([each.flatten() for each in sums]).cpu()
        found[name] = float((flat - expected).norm() / expected.norm())
    return found


def one_by_one(model, examples, loss):
    """The clipped sum by autograd, one example at a time, in float64."""
    import torch

    total = 0.0
    for example in examples:
        model.zero_grad()
        loss(model, [example]).sum().backward()
        flat = torch.cat([each.grad.flatten() for each in model.parameters()])
        total = total + flat * min(1.0, CLIP_BOUND / float(flat.norm()))
    model.zero_grad()
    return total


def new_model(shape: dict, *, gpt2: bool = False):
    from transformers import (
        BartConfig,
        BartForConditionalGeneration,
        GPT2Config,
        GPT2LMHeadModel,
    )

    if gpt2:
        config = GPT2Config(
            vocab_size=shape["vocabulary"],
            n_embd=shape["width"],
            n_layer=shape["layers"],
            n_head=shape["heads"],
            n_positions=256,
            bos_token_id=2,
            eos_token_id=2,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
        )
        return GPT2LMHeadModel(config)
    if "groups" in shape:
        return new_llama(shape)
    config = BartConfig(
        vocab_size=shape["vocabulary"],
        d_model=shape["width"],
        encoder_layers=shape["layers"],
        decoder_layers=shape["layers"],
        encoder_attention_heads=shape["heads"],
        decoder_attention_heads=shape["heads"],
        encoder_ffn_dim=shape["feed_forward"],
        decoder_ffn_dim=shape["feed_forward"],
        max_position_embeddings=1024,
        dropout=0.0,
        pad_token_id=1,
        bos_token_id=0,
        eos_token_id=2,
        decoder_start_token_id=2,
        forced_eos_token_id=None,
    )
    return BartForConditionalGeneration(config)


def new_llama(shape: dict):
    """With adapters beside frozen layers where the shape names a rank; else all weights train."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from dpsynth_assets.models.fine_tuning.adapters import add_adapters

    config = LlamaConfig(
        vocab_size=shape["vocabulary"],
        hidden_size=shape["width"],
        intermediate_size=shape["feed_forward"],
        num_hidden_layers=shape["layers"],
        num_attention_heads=shape["heads"],
        num_key_value_heads=shape["groups"],
        tie_word_embeddings="lora_rank" in shape,  # Opacus has no rule for a tied weight
    )
    model = LlamaForCausalLM(config)
    return add_adapters(model, shape["lora_rank"]) if "lora_rank" in shape else model


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=ON_A_PROCESSOR, choices=list(SHAPES))
    parser.add_argument(
        "--ways", nargs="+", default=list(WAYS), choices=[*WAYS, *ON_A_GPU, INTEGERS]
    )
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--logical", type=int, default=None, help="records of a logical batch")
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--child", choices=[*WAYS, *ON_A_GPU, INTEGERS], help=argparse.SUPPRESS)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--agreement", action="store_true", help="check sums, measure nothing")
    return parser.parse_args()


if __name__ == "__main__":
    main()
