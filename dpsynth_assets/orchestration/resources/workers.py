"""The workers of stages that go over parts, as a Dagster resource."""

from typing import ClassVar

import dagster as dg

from dpsynth_assets.workers import Workers, declared_workers


class PartWorkers(dg.ConfigurableResource):
    """Gives the workers that the environment declares (`DPSYNTH_WORKERS`).

    It has no field, hence no run config: who may launch a run does not choose where records go.
    """

    opens_private_data: ClassVar[bool] = False

    def open(self) -> Workers:
        """The workers; Ray is connected to at the first part.

        Raises:
            PrivacyError: The environment names none that there are.
        """
        return declared_workers()
