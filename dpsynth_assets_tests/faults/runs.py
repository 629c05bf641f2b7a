"""Starts runs as processes of their own, from one process that has imported everything.

    python -m dpsynth_assets_tests.faults.runs

reads one JSON command a line: `{"start": {variables}, "outcome": file}` forks a run and answers its
process id; `{"wait": pid}` answers its exit status. A fork costs a hundredth of a fresh start.
"""

import gc
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import dagster as dg

from dpsynth_assets.privacy.accounting import epsilon_of_fixed
from dpsynth_assets.privacy.histogram import NoisyHistogram
from dpsynth_assets.tags import RELEASE
from dpsynth_assets_tests.faults.cohort import EVENT, HISTOGRAM, TERMS, counts_job

QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


def run_once(outcome: Path) -> None:
    """Runs the job, as a run worker does, and writes what a person sees of it."""
    release = os.environ.get("FAULTS_RELEASE", "1")
    with dg.DagsterInstance.get() as instance:
        result = dg.execute_job(
            dg.reconstructable(counts_job),
            instance=instance,
            run_config=QUIET,
            tags={RELEASE: release},
            raise_on_error=False,
            reexecution_options=_failed_run(instance),
        )
        outcome.write_text(json.dumps(told(instance, result)))


def _failed_run(instance: dg.DagsterInstance) -> dg.ReexecutionOptions | None:
    run_id = os.environ.get("FAULTS_RETRY_OF", "")
    return dg.ReexecutionOptions.from_failure(run_id, instance) if run_id else None


def told(instance: dg.DagsterInstance, result: Any) -> dict[str, Any]:
    """Success, messages and metadata of a run, as its page shows them."""
    logs = instance.all_logs(result.run_id)
    failures = [_failure(log.dagster_event) for log in logs if _is_step_failure(log)]
    warnings = [log.user_message for log in logs if log.level >= 30 and not log.is_dagster_event]
    outputs = [
        {key: value.value for key, value in log.asset_materialization.metadata.items()}
        for log in logs
        if log.asset_materialization is not None
    ]
    return {
        "run_id": result.run_id,
        "success": result.success,
        "failures": failures,
        "warnings": warnings,
        "events": [log.dagster_event.message or "" for log in logs if log.is_dagster_event],
        "metadata": {k: v for k, v in outputs[-1].items() if _is_plain(v)} if outputs else {},
    }


def _is_step_failure(log: Any) -> bool:
    return log.is_dagster_event and log.dagster_event.is_step_failure


def _failure(event: Any) -> str:
    data = event.event_specific_data
    user = data.user_failure_data
    return user.description if user is not None else data.error.message


def _is_plain(value: Any) -> bool:
    return isinstance(value, str | int | float | bool)


def _fork(variables: dict[str, str], outcome: Path) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        os.environ.update(variables)
        os.close(0)
        os.dup2(2, 1)  # Answers go to stdout, nothing else does.
        run_once(outcome)
        os._exit(0)
    except BaseException:  # noqa: BLE001 (whatever happens, the copy must not run on)
        traceback.print_exc()
        os._exit(70)


def main() -> None:
    # What a run imports on its way, it imports once, here; Polars' threads would not survive.
    NoisyHistogram(**HISTOGRAM).release([1, 1])
    epsilon_of_fixed([EVENT], TERMS.delta, TERMS.accountant)
    gc.freeze()
    for line in sys.stdin:
        command = json.loads(line)
        if "start" in command:
            answer = _fork(command["start"], Path(command["outcome"]))
        else:
            answer = os.waitpid(command["wait"], 0)[1]
        sys.stdout.write(f"{answer}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        run_once(Path(sys.argv[1]))  # A run worker that was not forked.
    else:
        main()
