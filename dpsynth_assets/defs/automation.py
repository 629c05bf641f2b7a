"""The sensor behind declarative automation: what costs nothing follows new releases by itself."""

import dagster as dg


@dg.definitions
def automation() -> dg.Definitions:
    """One sensor over all assets; only those with an automation condition are ever asked for."""
    return dg.Definitions(
        sensors=[
            dg.AutomationConditionSensorDefinition(
                "follow_releases",
                target=dg.AssetSelection.all(),
                minimum_interval_seconds=120,  # A tick over hundreds of cohorts takes a while.
                default_status=dg.DefaultSensorStatus.STOPPED,
                description=(
                    "Publishes, scores and states what new releases lead to. Never asks for an "
                    "asset that charges the ledger."
                ),
            )
        ]
    )
