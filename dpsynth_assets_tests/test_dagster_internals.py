"""What Dagster does not promise stands in one module, and what it replaces there works."""

import threading
import time
from itertools import pairwise

import dagster as dg
from dagster._core.execution.plan import instance_concurrency_context as concurrency

from dpsynth_assets.orchestration import dagster_internals
from dpsynth_assets.orchestration.resources import live_runs
from dpsynth_assets.orchestration.resources.executors import declared_executor

POOL = "narrow"
PER_OP = {"concurrency": {"pools": {"granularity": "op"}}}


@dg.asset(pool=POOL)
def wanted() -> int:
    return 1


def definitions() -> dg.Definitions:
    return dg.Definitions(
        assets=[wanted],
        jobs=[dg.define_asset_job("everything", selection="*")],
        executor=declared_executor(),
    )


def job() -> dg.JobDefinition:
    return definitions().resolve_job_def("everything")


def test_a_waiting_run_asks_a_few_times_a_second(tmp_path, monkeypatch, own_home):
    monkeypatch.setenv("DPSYNTH_EXECUTOR", "in_process")
    monkeypatch.setattr(live_runs, "free_dead_runs", lambda _: [])  # "another" is no real run.
    asked, rested = [], []
    dagster_internals.rest_between_claims()
    ask = concurrency.InstanceConcurrencyContext.claim

    def counted(self, *arguments, **named):
        asked.append(time.monotonic())
        return ask(self, *arguments, **named)

    counted.rests = True
    monkeypatch.setattr(concurrency.InstanceConcurrencyContext, "claim", counted)
    monkeypatch.setattr(dagster_internals, "REST_SECONDS", 0.05)
    with dg.DagsterInstance.local_temp(str(tmp_path), overrides=PER_OP) as instance:
        storage = instance.event_log_storage
        storage.set_concurrency_slots(POOL, 1)
        assert storage.claim_concurrency_slot(POOL, "another", "step").is_claimed

        def free() -> None:
            while len(asked) < 12 and not over.is_set():
                time.sleep(0.02)
            rested.extend(asked)
            storage.free_concurrency_slot_for_step("another", "step")

        over = threading.Event()
        freeing = threading.Thread(target=free, daemon=True)
        freeing.start()
        result = dg.execute_job(dg.reconstructable(job), instance=instance)
        over.set()
        freeing.join()
    assert result.success
    assert len(rested) >= 12
    gaps = [after - before for before, after in pairwise(rested)]
    assert min(gaps) >= 0.05
