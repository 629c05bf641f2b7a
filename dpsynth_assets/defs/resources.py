"""Resources of the code location, and the executor of launched runs."""

import dagster as dg


@dg.definitions
def resources() -> dg.Definitions:
    """Binds resources; paths and URLs come from DPSYNTH_HOME and DPSYNTH_LEDGER_URL."""
    from dpsynth_assets.orchestration.io_managers import ArtifactIOManager
    from dpsynth_assets.orchestration.resources.executors import declared_executor
    from dpsynth_assets.orchestration.resources.ledger import PrivacyLedger
    from dpsynth_assets.orchestration.resources.models import Models
    from dpsynth_assets.orchestration.resources.progress import Progress
    from dpsynth_assets.orchestration.resources.release_store import ReleaseStore
    from dpsynth_assets.orchestration.resources.sensitive_store import SensitiveStore
    from dpsynth_assets.orchestration.resources.workers import PartWorkers

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
