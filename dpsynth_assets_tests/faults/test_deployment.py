"""The production layout for real: PostgreSQL for Dagster and ledger, S3 for everything else."""

import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import sqlalchemy as sa

from dpsynth_assets.orchestration.resources.stores import SensitiveStore
from dpsynth_assets.paths import located
from dpsynth_assets.sensitive.sealing import HEADER, KEY_VARIABLE
from dpsynth_assets_tests.faults.cohort import COHORT, DRAWN, KEY, PASSES, RECORDS
from dpsynth_assets_tests.security.conftest import key
from dpsynth_assets_tests.stored import write_records

pytestmark = pytest.mark.slow

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"


@pytest.fixture
def production(house, postgres_url, bucket, monkeypatch):
    """A house on `deploy/dagster.yaml`, a PostgreSQL server and an S3 server."""
    pytest.importorskip("dagster_postgres")
    pytest.importorskip("dagster_aws")
    server = sa.make_url(postgres_url)
    shutil.rmtree(house.home / "dagster" / "history")
    (house.home / "dagster" / "dagster.yaml").write_text((DEPLOY / "dagster.yaml").read_text())
    private = {"DPSYNTH_SENSITIVE_URL": f"{bucket}/private", KEY_VARIABLE: key(1)}
    house.variables |= private | {
        "DAGSTER_PG_HOST": server.host,
        "DAGSTER_PG_PORT": str(server.port),
        "DAGSTER_PG_USER": server.username,
        "DAGSTER_PG_PASSWORD": server.password,
        "DAGSTER_PG_DB": server.database,
        "DPSYNTH_LEDGER_URL": postgres_url,
        "DPSYNTH_STORE_URL": f"{bucket}/store",
        "DPSYNTH_LOG_BUCKET": bucket.removeprefix("s3://").split("/")[0],
        "FAULTS_STORE": f"{bucket}/store/releases",
    }
    house.variables |= {name: os.environ[name] for name in os.environ if name.startswith("AWS_")}
    for name, value in private.items():
        monkeypatch.setenv(name, value)
    shutil.rmtree(house.home / "sensitive")
    write_records(SensitiveStore(), COHORT, "source", RECORDS)
    SensitiveStore().read_records.note_read(COHORT, "version 1", "declared", "rows")
    return house


def test_a_job_runs_on_postgresql_and_s3_and_a_killed_one_pays_once(production, bucket):
    production.killed_at(DRAWN)
    (charge,) = production.ledger().entries()
    passes = SensitiveStore().passes(COHORT, SimpleNamespace(id=charge.reservation))
    kept = [passes.load(number)["dp_counts"] for number in range(PASSES)]
    retried = production.run()
    assert retried["success"], retried["failures"]
    production.assert_whole(charges=1, released=1)
    assert production.store.load(charge.reservation)[0]["dp_counts"] == kept
    commit = production.ledger().entries()[-1]
    assert commit.artifact_uri == f"{bucket}/store/releases/{commit.reservation}"
    for local in ("artifacts", "sensitive"):
        assert not (production.home / local).exists()
    assert not list(production.home.glob("dagster/history/**/*.db"))
    files = production.store.base.fs
    assert files.exists(f"{bucket}/store/values/{'/'.join(KEY)}.json")
    assert any("compute-logs" in name for name in files.find(bucket.rsplit("/", 1)[0]))
    private = [files.cat_file(name) for name in files.find(located(f"{bucket}/private").path)]
    assert private
    assert all(each.startswith(HEADER) and b"Ottoline" not in each for each in private)
    tables = sa.inspect(sa.create_engine(production.url)).get_table_names()
    assert {"runs", "event_logs", "privacy_ledger"} <= set(tables)
