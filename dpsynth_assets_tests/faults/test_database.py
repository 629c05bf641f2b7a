"""PostgreSQL that stops during a run: the charge stays, the stored value is committed later."""

import shutil
import tempfile
from pathlib import Path

import pytest
import sqlalchemy as sa

from dpsynth_assets_tests import conftest as servers
from dpsynth_assets_tests.faults.cohort import BEFORE, DRAWN, PASS, RESERVED

pytestmark = pytest.mark.slow


class Server:
    """A PostgreSQL server of its own, which a test may stop and start again."""

    def __init__(self, folder):
        user = "postgres" if servers.os.geteuid() == 0 else None
        if user is not None:
            shutil.chown(folder, user)
        self._server = servers._Server(servers._programs(), folder, user)
        self._folder = folder
        port, password = self._server.start()
        self._port = port
        address = sa.URL.create(
            "postgresql+psycopg2", "tests", password, "127.0.0.1", port, "postgres"
        )
        self.url = address.render_as_string(hide_password=False)

    def stop(self):
        """Cuts every connection at once, as a power cut would."""
        self._server.stop()

    def start(self):
        settings = (
            f"-c listen_addresses=127.0.0.1 -p {self._port} -c shared_buffers=16MB"
            f" -c unix_socket_directories={self._folder}"
        )
        data, log = str(self._server.data), str(self._folder / "log")
        self._server._run("pg_ctl", "-D", data, "-l", log, "-w", "-o", settings, "start")


@pytest.fixture(scope="module")
def server():
    if servers._programs() is None:
        pytest.skip("PostgreSQL tests need a server's programs")
    folder = Path(tempfile.mkdtemp(prefix="dpsynth-stopped-"))
    try:
        started = Server(folder)
        yield started
        started.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def on_server(house, server):
    servers._execute(sa.make_url(server.url), "DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
    house.variables["DPSYNTH_LEDGER_URL"] = server.url
    return house


def test_a_server_that_is_down_is_named_and_nothing_private_is_read(on_server, server):
    server.stop()
    outcome = on_server.run()
    server.start()
    assert not outcome["success"]
    assert "Nothing private may be read without it" in outcome["failures"][0]
    assert len(on_server.passed(BEFORE)) == 1
    assert on_server.passed(RESERVED) == []
    password = sa.make_url(server.url).password
    assert password not in str(outcome)
    assert on_server.charges() == 0


@pytest.mark.parametrize("point", [PASS, DRAWN])
def test_a_server_that_stops_during_a_run_loses_and_repeats_nothing(on_server, server, point):
    on_server.hold(point)
    run = on_server.start()
    run.at(point)
    server.stop()
    on_server.free(point)
    outcome = run.outcome()
    server.start()
    assert not outcome["success"]
    assert "run again, and it is committed at no further charge" in outcome["failures"][0]
    assert on_server.charges() == 1
    (stored,) = (path for path in on_server.store.base.iterdir() if path.name[0] != ".")
    digest = on_server.store.digest(stored.name)
    assert on_server.run()["success"]
    on_server.assert_whole(charges=1, released=1)
    assert on_server.released() == [digest]
