"""Models as a Dagster resource: loaded on first use, once per process."""

from typing import ClassVar

import dagster as dg

from dpsynth_assets.public_base.opening import OpenedModels


class Models(dg.ConfigurableResource, OpenedModels):
    """Gives the text embedder and the language model that a public base made or named."""

    opens_private_data: ClassVar[bool] = False
