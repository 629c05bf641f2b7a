"""How much of what records say reaches a corpus: facts that a model learns from it.

    PYTHONPATH=. python benchmarks/what_survives.py --to build/survives --small
        [--families epsvec aug_pe] [--epsilons 1 3 10 inf] [--rows 200] [--facts 8] [--seed 0]
        [--settings '{"steps": 60}']
    PYTHONPATH=. python benchmarks/what_survives.py --to build/survives --table

Scores of style do not see whether a corpus says what its records say. Here records are invented
notes (`invented_facts.py`), each fact held by 1 to 200 of them; public text tells of other persons.
A small model is fine-tuned on as many rows of each corpus and asked for every fact: is the right
value likelier than three others? Guessing is right in a quarter. Beside it stands the share of
facts that some row states, and that some row names without its value.

Real data, as many records as a corpus has rows, is the ceiling; public text the floor; ε = inf is
the same method without clipping and noise (`no_noise.py`). A line a cell is appended to
`lines.jsonl`; what has its line is not run again. --small makes cells of minutes. --settings are
those of the families named: with them a cell is another one.
"""

import argparse
import json
import math
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from invented_facts import HOLDERS, Fact, facts, notes
from no_noise import without_noise

from dpsynth_assets.datasets.benchmark_spec import BenchmarkDataset
from dpsynth_assets.metrics.metric import RESAMPLES, interval
from dpsynth_assets.public_base import PublicBase

DELTA = 1e-5
DOMAIN = "Short notes of visits to people and their belongings"
TOKENS = 48
REAL, FLOOR = "real data", "public text"
BANDS = ((1, 2), (5, 10), (20, 50), (100, 200))
PUBLIC_HOLDERS = (2, 5, 10, 20)
"""Public facts are as many, and held by fewer records: only style is to be learned of them."""
DATASET = BenchmarkDataset(path="invented_facts.py", public=True, domain=DOMAIN)
"""Invented records, which anyone may read."""

_PREDICTION = {
    "expected_batch_size": 32, "max_batches": 40, "batches_per_forward": 4, "batching": "slots",
    "max_document_tokens": TOKENS, "max_example_tokens": TOKENS, "on_exhaustion": "finish_publicly",
}  # fmt: skip
_TUNING = {"steps": 12, "expected_batch_size": 256, "max_document_tokens": TOKENS}
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "aug_pe": {"population": 400, "variations": 4, "iterations": 3, "max_new_tokens": TOKENS},
    "epsvec": {
        "candidates": 100, "negatives": 100, "clip_documents": 200, "shots": 1, "kept_shots": 12,
        "max_document_tokens": TOKENS, "max_new_tokens": TOKENS,
    },
    "dp_fine_tuning": _TUNING,
    "ctcl": _TUNING,
    "mean_clustered": _PREDICTION,
}  # fmt: skip
SMALL: Mapping[str, Mapping[str, Any]] = {
    "aug_pe": {"population": 150, "variations": 3, "iterations": 3},
    "epsvec": {"candidates": 60, "negatives": 60, "clip_documents": 60, "vector_records": 400},
    "dp_fine_tuning": {"steps": 4},
    "ctcl": {"steps": 4},
    "mean_clustered": {"expected_batch_size": 16, "max_batches": 24},
}
_SLOTS = {
    "neighboring_relation": "zero-out",
    "public_facts": {"slots": True},
    "cluster_histogram": {"clusters_per_label": 3},
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--to", type=Path, required=True, help="folder of lines and corpora")
    parser.add_argument("--families", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--epsilons", nargs="+", type=float, default=[10.0, math.inf, 3.0, 1.0])
    parser.add_argument("--rows", type=int, help="rows of a corpus; 200 with --small, else 1000")
    parser.add_argument("--facts", type=int, default=8, help="facts of each number of records")
    parser.add_argument("--passes", type=int, default=4, help="passes of the fine-tuning")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--settings", type=json.loads, default={}, help="settings of the methods")
    parser.add_argument("--table", action="store_true", help="print the table of what is there")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    options.rows = options.rows or (200 if options.small else 1_000)
    options.to.mkdir(parents=True, exist_ok=True)
    lines = options.to / "lines.jsonl"
    read = [json.loads(line) for line in lines.read_text().splitlines()] if lines.exists() else []
    if options.table:
        print(table(read))
        return
    os.environ.setdefault("DPSYNTH_HOME", str(options.to / "home"))
    known = facts(options.facts)
    others = notes(facts(options.facts * 2, PUBLIC_HOLDERS, public=True), options.seed)
    base = PublicBase(
        pl.DataFrame({"text": others}), name="other_facts", domain=DOMAIN,
        language_model={"kind": "smollm2"}, text_embedder={"max_tokens": 64},
        clusters={"count": 24}, conditional_generator={"kind": "language_model"},
    )  # fmt: skip
    cells = [(REAL, 0.0), (FLOOR, 0.0)]
    cells += [(name, epsilon) for epsilon in options.epsilons for name in options.families]
    for name, epsilon in cells:
        settings = {} if name in (REAL, FLOOR) else options.settings
        cell = {"corpus": name, "epsilon": str(epsilon), "small": options.small,
                "seed": options.seed, "of_each": options.facts}  # fmt: skip
        if not any((cell | {"settings": settings}).items() <= ({"settings": {}} | line).items()
                   for line in read):  # fmt: skip
            cell |= {"settings": settings} if settings else {}
            found = cell | measured(name, epsilon, known, others, base, options)
            with lines.open("a") as file:
                file.write(json.dumps(found) + "\n")
            print(json.dumps({k: v for k, v in found.items() if k != "facts"}), flush=True)


def measured(
    name: str,
    epsilon: float,
    known: Sequence[Fact],
    others: Sequence[str],
    base: PublicBase,
    options: argparse.Namespace,
) -> dict[str, Any]:
    """Makes one corpus and asks for every fact."""
    records, began = notes(known, options.seed), (time.monotonic(), time.process_time())
    spent = 0.0
    if name in (REAL, FLOOR):
        texts = list(records if name == REAL else others)[: options.rows]
    else:
        texts, spent = corpus(name, epsilon, records, base, options)
    made = time.monotonic() - began[0]
    settings = {} if name in (REAL, FLOOR) else options.settings
    told = "".join(f"-{key}-{value}" for key, value in settings.items())
    kept = options.to / f"{name}-{epsilon:g}-{options.seed}{told}.parquet"
    pl.DataFrame({"text": texts}).write_parquet(kept)
    shares = right_shares(base, texts, known, passes=options.passes, seed=options.seed)
    return {
        "records": len(records),
        "rows": len(texts),
        "spent_epsilon": spent,
        "seconds_to_write": round(made),
        "processor_seconds": round(time.process_time() - began[1]),
        "facts": {
            "holders": [fact.holders for fact in known],
            "right": [bool(own.argmax() == 0) for own in shares],
            "share_of_right": [round(float(own[0]), 3) for own in shares],
            "named": [any(map(fact.named_in, texts)) for fact in known],
            "stated": [any(map(fact.stated_in, texts)) for fact in known],
        },
    }


def corpus(
    name: str,
    epsilon: float,
    records: Sequence[str],
    base: PublicBase,
    options: argparse.Namespace,
) -> tuple[list[str], float]:
    """Texts of a method at a budget, and ε that its label states; inf: without any noise."""
    from dpsynth_assets import run_method
    from dpsynth_assets.privacy.ledger import Ledger

    small = SMALL[name] if options.small else {}
    settings = {**SETTINGS[name], **small, **options.settings}
    frame = pl.DataFrame({"text": records})
    if math.isinf(epsilon):
        made = without_noise(
            name, DATASET, frame.with_columns(label=pl.lit("")), base, settings,
            rows=options.rows, seed=options.seed,
        )  # fmt: skip
        return made["text"].to_list(), math.inf
    declared = _SLOTS if name == "mean_clustered" else {}
    size = {"records": len(records), **declared.get("public_facts", {})}
    with tempfile.TemporaryDirectory() as scratch:
        run = run_method(
            name, frame, base, epsilon=epsilon, delta=DELTA, settings=settings,
            rows=None if name == "mean_clustered" else options.rows,
            cohort=f"facts_{name}", declared={**declared, "public_facts": size},
            ledger=Ledger(f"sqlite:///{scratch}/ledger.sqlite"), store=Path(scratch) / "releases",
        )  # fmt: skip
        rows = [] if run.corpus is None else run.corpus["text"].to_list()
        return rows[: options.rows], float(run.label["guarantee"].get("epsilon", 0.0))


def right_shares(
    base: PublicBase, texts: Sequence[str], known: Sequence[Fact], *, passes: int, seed: int
) -> np.ndarray:
    """Fine-tunes the base's model on texts and asks; (F, 4) probabilities, the right value first.

    Adapters beside all layers learn; frozen weights multiply in integers, as in `ctcl`.
    """
    import torch
    from transformers import AutoModelForCausalLM

    from dpsynth_assets.models.fine_tuning.adapters import add_adapters, multiply_in_integers
    from dpsynth_assets.models.language_model import causal_rows, in_parts, mean_token_losses

    public = base.values(["public_language_model"])["public_language_model"]
    tokens = base.models.language_model(public)
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_pretrained(tokens.source).requires_grad_(False)
    model = add_adapters(model, ADAPTER_RANK, modules=None)
    multiply_in_integers(model)
    weights = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=RATE, weight_decay=0.0)
    end, draw = [int(tokens.tokenizer.eos_token_id)], np.random.default_rng(seed)
    rows = [[*ids[:TOKENS], *end] for ids in tokens.encode_all(texts)]
    model.eval()
    for _ in range(passes):
        order = [rows[place] for place in draw.permutation(len(rows)).tolist()]
        for batch in in_parts(order, BATCH):
            inputs, labels = causal_rows([end] * len(batch), batch, tokens.pad_token_id)
            mean_token_losses(model(**inputs, use_cache=False).logits, labels).mean().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    return asked(model, tokens, known)


ADAPTER_RANK, RATE, BATCH = 16, 1e-3, 16


def asked(model: Any, tokens: Any, known: Sequence[Fact]) -> np.ndarray:
    """Probability of each choice, the right one first: mean log probability of all questions."""
    import torch

    from dpsynth_assets.models.language_model import causal_rows, in_parts, token_losses

    end = [int(tokens.tokenizer.eos_token_id)]
    pairs = [
        ([*end, *tokens.encode(question)], tokens.encode(f" {value}"))
        for fact in known
        for value in (fact.value, *fact.others)
        for question in fact.questions()
    ]
    scores: list[float] = []
    with torch.no_grad():
        for batch in in_parts(pairs, 64):
            inputs, labels = causal_rows(*zip(*batch, strict=True), tokens.pad_token_id)
            losses = token_losses(model(**inputs, use_cache=False).logits, labels)
            scores += (-losses.sum(1)).tolist()
    logs = np.array(scores).reshape(len(known), 1 + len(known[0].others), -1).mean(2)
    shares = np.exp(logs - logs.max(1, keepdims=True))
    return np.asarray(shares / shares.sum(1, keepdims=True))


def table(lines: Sequence[Mapping[str, Any]]) -> str:
    """Shares of facts right and stated, by the number of records that hold them, as Markdown."""
    named = [f"{low} or {high}" for low, high in BANDS]
    head = ["corpus", "ε", "rows", *(f"right, {each}" for each in named),
            *(f"stated, {each}" for each in named)]  # fmt: skip
    rows = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for line in lines:
        told = [line["corpus"], line["epsilon"], str(line["rows"])]
        for key in ("right", "stated"):
            told += [shown(line["facts"], key, band) for band in BANDS]
        rows.append(f"| {' | '.join(told)} |")
    return "\n".join(rows)


def shown(found: Mapping[str, Sequence[Any]], key: str, band: Sequence[int]) -> str:
    """Share of a band's facts, with the interval of facts that are drawn again."""
    own = np.array([v for v, holders in zip(found[key], found["holders"], strict=True)
                    if holders in band], dtype=float)  # fmt: skip
    draws = np.random.default_rng(0).choice(own, (RESAMPLES, len(own))).mean(1)
    low, high = interval(draws)
    return f"{own.mean():.2f} ({low:.2f} to {high:.2f})"


if __name__ == "__main__":
    assert {holders for band in BANDS for holders in band} == set(HOLDERS)
    main()
