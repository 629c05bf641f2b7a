"""A method run by name with vLLM: one charge, which says what its self-test found."""

import polars as pl
import pytest
from mailboxes import public_rows

from dpsynth_assets import PublicBase, run_method
from dpsynth_assets.methods.private_prediction import decoding, preconditions
from dpsynth_assets.models.vllm_decoder import opening

pytestmark = pytest.mark.timeout(600)


def test_a_self_test_that_passes_stands_in_charge_and_label(folder, tmp_path, monkeypatch):
    """A processor has no such kernels; one thread moves no bit all the same."""
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path))
    monkeypatch.setattr(decoding, "batch_invariant", lambda: True)
    monkeypatch.setattr(preconditions, "require_invariant_kernels", lambda _: None)
    rows = pl.DataFrame(public_rows(200, seed=3)).select("text", label=pl.lit("all"))
    made = run_method(
        "mean_uniform",
        rows,
        PublicBase(
            rows.head(100),
            language_model={"kind": "pretrained", "model": str(folder), "decoder": "vllm"},
        ),
        epsilon=200.0,
        delta=1e-5,
        settings={"expected_batch_size": 20, "max_batches": 2, "logit_slack": 0.0},
        labels=("all",),
        cohort="notes",
        declared={
            "engine": {"kind": "vllm", "cache_gib": 0.5},
            "public_facts": {"records": 200},
        },
    )
    opening.close_decoders()
    (charge,) = [entry for entry in made.entries if entry.kind == "reserve"]
    tested = charge.parameters["rests_on"]["self_test"]
    assert tested["passed"] is True
    assert (tested["device"], tested["dtype"]) == ("cpu", "float32")
    assert tested["engine"].startswith("vllm 0.32.0")
    (line,) = [each for each in made.label["assumptions"] if "self-test" in each]
    assert f"{tested['contexts']} public contexts in {tested['companies']} arrangements" in line
    assert made.corpus.height
