"""Models as a Dagster resource: opened on first use, shared by a run's steps, closed with it."""

from typing import ClassVar

import dagster as dg

from dpsynth_assets.models.kept import begin_use, end_use
from dpsynth_assets.public_base.opening import OpenedModels


class Models(dg.ConfigurableResource, OpenedModels):
    """Gives the text embedder and the language model that a public base made or named.

    Within a process every model is opened once. When the last run of the process ends, all of them
    are closed and their memory goes back to the system.
    """

    opens_private_data: ClassVar[bool] = False

    def setup_for_execution(self, context: dg.InitResourceContext) -> None:
        """Notes that a run uses models."""
        del context
        begin_use()

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:
        """Closes models where no other run of this process uses them."""
        del context
        end_use()
