"""How far batch mates move a record's clipped gradient: what `gradient_slack` has to bound.

    python benchmarks/gradient_slack.py [--models small gpt2 next_word lora classifier]
        [--records 6] [--threads 1] [--bfloat16]
    python benchmarks/gradient_slack.py --models smollm2 --records 2 --sizes 2 5 [--record shorter]

A record's clipped gradient is computed alone, and then in company: the losses of its mates are
multiplied by zero, so that a clipped sum over the part holds the gradient of one record, rounded as
the pass rounds it. Parts have 2 to 32 records, mates are shorter, longer and mixed, and the record
stands at any place. What is told is the largest Euclidean distance between two companies, as share
of the clip bound, which every gradient here is cut to. `smollm2` has real weights, the others
random ones; with `--record shorter` a record alone is a pass of few rows.
"""

import argparse
import itertools

import numpy as np

SIZES = (2, 5, 8, 17, 32)
COMPANIES = ("shorter", "longer", "mixed")
BOUND = 1e-3


def main() -> None:
    arguments = parse()
    import torch

    torch.set_num_threads(arguments.threads)
    for name in arguments.models:
        found = largest_moves(name, arguments)
        rows = ", ".join(f"{way} {move:.2e}" for way, move in found.items())
        print(f"{name}: largest move / C: {max(found.values()):.2e} ({rows})", flush=True)


def largest_moves(name: str, arguments) -> dict[str, float]:
    """The largest move of any record, by the arithmetic of the sums."""
    import torch

    from dpsynth_assets.privacy.per_example import Products

    torch.manual_seed(0)
    model, loss, draw = made(name)
    generator = np.random.default_rng(1)
    found = {}
    for products in Products:
        moves = [
            largest_move(model, loss, draw, generator, products, arguments)
            for _ in range(arguments.records)
        ]
        found[str(products)] = max(moves)
    return found


def largest_move(model, loss, draw, generator, products, arguments) -> float:
    """The largest distance between the clipped gradients of one record in many companies."""
    record, bfloat16 = draw(generator, arguments.record), arguments.bfloat16
    gradients = [gradient_in_company(model, loss, [record], 0, products, bfloat16)]
    for size, company in itertools.product(arguments.sizes, COMPANIES):
        mates = [draw(generator, company) for _ in range(size - 1)]
        place = int(generator.integers(size))
        part = [*mates[:place], record, *mates[place:]]
        gradients.append(gradient_in_company(model, loss, part, place, products, bfloat16))
    pairs = itertools.combinations(gradients, 2)
    return max(float((one - other).norm()) for one, other in pairs) / BOUND


def gradient_in_company(model, loss, part, place: int, products, bfloat16: bool):
    """The clipped gradient of the record at `place`, over all parameters, float64."""
    import torch

    from dpsynth_assets.privacy.per_example import LossOfPart, PerExampleGradients

    def losses(model):
        only = torch.zeros(len(part))
        only[place] = 1.0
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bfloat16):
            return loss(model, part) * only

    clipped, rows = PerExampleGradients(model, products), len(part) * max(map(loss.length, part))
    sums, _ = clipped.private_clipped_sums([LossOfPart(len(part), losses, rows)], BOUND)
    return torch.cat([each.flatten() for each in sums])


def made(name: str):
    """A model, its loss, and what draws an example for a company."""
    from dp_training import SHAPES, new_loss, new_model

    if name == "classifier":
        return classifier()
    if name == "next_word":
        return next_word()
    if name == "smollm2":
        return smollm2()
    shape = "gpt2" if name == "lora" else name
    model, loss = new_model(shape), new_loss(shape)
    if name == "lora":
        from dpsynth_assets.models.fine_tuning.adapters import add_adapters

        model = add_adapters(model, 8)
    return model.train(False), loss, tokens(SHAPES[shape]["vocabulary"], 32, 96)


def next_word():
    from dpsynth_assets.datasets.evaluation_section import NextWordSettings
    from dpsynth_assets.models.fine_tuning.sources import CausalLoss
    from dpsynth_assets.models.next_word_model import new_next_word_model

    model = new_next_word_model(NextWordSettings()).requires_grad_(True)
    return model, CausalLoss(pad_token_id=0, start_token_id=1), tokens(3000, 0, 47)


def smollm2():
    from transformers import AutoModelForCausalLM

    from dpsynth_assets.models.fine_tuning.sources import CausalLoss
    from dpsynth_assets.public_base.making import packaged_model

    model = AutoModelForCausalLM.from_pretrained(packaged_model())
    loss = CausalLoss(pad_token_id=2, start_token_id=1)
    return model.float().train(False), loss, tokens(model.config.vocab_size, 0, 96)


def classifier():
    from dpsynth_assets.models.classifiers import (
        LabelledEmbedding,
        LabelLoss,
        new_label_classifier,
    )

    def draw(generator, _company):
        row = generator.standard_normal(384).astype(np.float32)
        return LabelledEmbedding(row / np.linalg.norm(row), int(generator.integers(5)))

    return new_label_classifier(384, 5), LabelLoss(), draw


def tokens(vocabulary: int, source: int, target: int):
    """Draws examples of random tokens, short or long."""
    from dpsynth_assets.models.fine_tuning.sources import TokenExample

    lengths = {"shorter": (1, 8), "longer": (target - 3, target), "mixed": (2, target)}

    def draw(generator, company):
        count = int(generator.integers(*lengths[company]))
        given = int(generator.integers(1, source)) if source else 0
        return TokenExample(
            generator.integers(3, vocabulary, given).tolist(),
            generator.integers(3, vocabulary, count).tolist(),
        )

    return draw


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = ["small", "gpt2", "next_word", "lora", "classifier"]
    parser.add_argument("--models", nargs="+", default=names, choices=[*names, "smollm2"])
    parser.add_argument("--records", type=int, default=6)
    parser.add_argument("--record", choices=COMPANIES, default="mixed")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--bfloat16", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
