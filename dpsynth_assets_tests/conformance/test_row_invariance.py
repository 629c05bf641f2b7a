"""What is computed of one record depends on that record alone, on every set of kernels.

The law and the functions it is run for are in `attacks.row_invariance` and `row_functions`. Each
set of kernels runs in a process of its own, since libraries choose their kernels when they load.
"""

import json
from pathlib import Path

import pytest

from dpsynth_assets.methods.private_prediction.config import MeanUniformConfig
from dpsynth_assets.privacy.per_example.arithmetic import GRADIENT_SLACK
from dpsynth_assets_tests.children import python

pytestmark = pytest.mark.slow

WIDE = {"OPENBLAS_CORETYPE": "SkylakeX"}
KERNELS = {
    "Haswell": {
        "OPENBLAS_CORETYPE": "Haswell",
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "FBGEMM_ENABLE_INSTRUCTIONS": "AVX2",
        "OMP_NUM_THREADS": "1",
    },
    "Zen": {
        "OPENBLAS_CORETYPE": "Zen",
        "ATEN_CPU_CAPABILITY": "default",
        "ONEDNN_MAX_CPU_ISA": "AVX512_CORE",
        "MKL_CBWR": "COMPATIBLE",
        "OMP_NUM_THREADS": "1",
    },
    "SkylakeX, two threads": WIDE
    | {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "PASSIVE", "OPENBLAS_NUM_THREADS": "1"},
}
IN_COMPANY = 8
"""Records of the batch whose gradients are clipped; all may move."""

BOUNDED = {
    "logits": MeanUniformConfig.model_fields["logit_slack"].default,
    "clipped gradients, native": IN_COMPANY * GRADIENT_SLACK,
    "clipped gradients, float64": IN_COMPANY * GRADIENT_SLACK,
    "clipped gradients, each alone": 1e-12,  # Sums are float64; each gradient is the same.
}
"""Where company may move a record, by at most what is charged or kept back for it."""


@pytest.fixture(scope="module", params=list(KERNELS))
def run(request):
    chosen = dict(KERNELS[request.param])
    if chosen["OPENBLAS_CORETYPE"] == "SkylakeX" and not _has_avx512():
        del chosen["OPENBLAS_CORETYPE"]  # The machine's own kernels instead.
    module = "dpsynth_assets_tests.conformance.row_functions"
    return json.loads(python("-m", module, HF_HUB_OFFLINE="1", **chosen))


def test_no_record_moves_what_is_computed_of_another(run):
    exact = {name: told for name, told in run.items() if name not in BOUNDED}
    assert len(exact) >= 21, "some of them as many ways as a processor has"
    assert {name: told for name, told in exact.items() if told["rows"] or told["by"]} == {}


def test_where_company_moves_a_record_the_bound_holds(run):
    for name, bound in BOUNDED.items():
        assert run[name]["by"] <= bound, name


def _has_avx512() -> bool:
    flags = Path("/proc/cpuinfo")
    return flags.exists() and "avx512f" in flags.read_text()
