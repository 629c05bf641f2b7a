"""A cohort of the demo's size, released by vLLM in a process of its own.

    python -m dpsynth_assets_tests.vllm.demo_cohort FOLDER [SETTINGS]

FOLDER holds the public model, SETTINGS (JSON) differ from the demo's. Prints what was released as
JSON, or the one line that refuses.
"""

import json
import sys

import polars as pl

from dpsynth_assets import PublicBase, run_method
from dpsynth_assets.paths import project_root
from dpsynth_assets.privacy.errors import PrivacyError

LABELS = ("Accounts", "Facilities", "Support", "Welfare")
SETTINGS = {"expected_batch_size": 40, "max_batches": 8, "batches_per_forward": 4}


def main(folder: str, settings: str = "{}") -> None:
    demo = project_root() / "data" / "demo"
    private = pl.read_ndjson(demo / "private_tickets.jsonl").select("text", "label")
    public = PublicBase(
        pl.read_parquet(demo / "public.parquet").head(200),
        language_model={"kind": "pretrained", "model": folder, "decoder": "vllm"},
    )
    try:
        made = run_method(
            "mean_uniform",
            private,
            public,
            epsilon=15.0,
            delta=1e-6,
            settings=SETTINGS | json.loads(settings),
            labels=LABELS,
            cohort="tickets",
            declared={
                "engine": {"kind": "vllm", "cache_gib": 1},
                "public_facts": {"records": 5000},
            },
        )
    except PrivacyError as problem:
        tell({"refused": str(problem)})
        return
    tell({
        "records": private.height,
        "rows": made.corpus.height,
        "text": made.corpus["text"].to_list(),
        "reused": made.reused,
        "parameters": made.label["mechanisms"][-1]["parameters"],
        "epsilon": made.label["guarantee"]["epsilon"],
        "charges": sum(entry.kind == "reserve" for entry in made.entries),
        "opened_vllm": "vllm" in sys.modules,
    })  # fmt: skip


def tell(facts: dict) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
