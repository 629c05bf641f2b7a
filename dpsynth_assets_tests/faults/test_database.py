"""PostgreSQL that stops during a run: the charge stays, the stored value is committed later."""

import pytest

from dpsynth_assets_tests import conftest as servers
from dpsynth_assets_tests.faults.cohort import BEFORE, DRAWN, PASS, RESERVED

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server():
    with servers.own_postgres() as started:
        yield started


@pytest.fixture
def on_server(house, server):
    house.variables["DPSYNTH_LEDGER_URL"] = servers.emptied(server.url)
    return house


def test_a_server_that_is_down_is_named_and_nothing_private_is_read(on_server, server):
    server.stop()
    outcome = on_server.run()
    server.start()
    assert not outcome["success"]
    assert "Nothing private may be read without it" in outcome["failures"][0]
    assert len(on_server.passed(BEFORE)) == 1
    assert on_server.passed(RESERVED) == []
    assert server.url.password not in str(outcome)
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
