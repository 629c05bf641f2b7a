"""Tag keys and values that the asset graph carries; the lineage check and the UI read them."""

from typing import Final

PRIVACY: Final = "dpsynth/privacy"
MECHANISM: Final = "dpsynth/mechanism"
RELEASE: Final = "dpsynth/release"

PUBLIC: Final = "public"
SENSITIVE: Final = "sensitive"
RELEASED: Final = "released"
INTERNAL: Final = "internal"
PRIVACY_LEVELS: Final = frozenset({PUBLIC, SENSITIVE, RELEASED, INTERNAL})

GPU_POOL: Final = "gpu"
GPU_OP_TAGS: Final = {
    "dagster-k8s/config": {
        "container_config": {"resources": {"limits": {"nvidia.com/gpu": 1}}},
    },
    "dagster-ray/config": {"num_gpus": 1},
}
"""Requests for executors that place steps on GPU nodes; inert under the local executors."""
