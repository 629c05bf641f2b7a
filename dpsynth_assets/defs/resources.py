"""Resources of the code location, and the executor of launched runs."""

import dagster as dg


@dg.definitions
def resources() -> dg.Definitions:
    """Binds resources, whose places are those of the installation."""
    from dpsynth_assets.orchestration.resources.executors import declared_executor
    from dpsynth_assets.orchestration.resources.progress import Progress
    from dpsynth_assets.orchestration.resources.stores import (
        ArtifactIOManager,
        Models,
        PartWorkers,
        PrivacyLedger,
        ReleaseStore,
        SensitiveStore,
    )

    return dg.Definitions(
        resources={
            "io_manager": ArtifactIOManager(),
            "ledger": PrivacyLedger(),
            "sensitive_store": SensitiveStore(),
            "release_store": ReleaseStore(),
            "models": Models(),
            "progress": Progress(),
            "workers": PartWorkers(),
        },
        executor=declared_executor(),
    )
