"""A clock that goes backwards: order, chain and sums come from the ledger, not from the time."""

import shutil
import subprocess

import pytest

pytestmark = pytest.mark.slow

SHIM = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>
int clock_gettime(clockid_t id, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int status = real(id, now);
    const char *back = getenv("CLOCK_BACK_SECONDS");
    if (id == CLOCK_REALTIME && back) now->tv_sec -= atol(back);
    return status;
}
"""
WEEK = 7 * 24 * 3600


@pytest.fixture(scope="session")
def slow_clock(tmp_path_factory):
    """A library under which a process sees an earlier time."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("the clock is turned back by a library that needs a C compiler")
    folder = tmp_path_factory.mktemp("clock")
    (folder / "clock.c").write_text(SHIM)
    command = [compiler, "-shared", "-fPIC", "-o", "clock.so", "clock.c", "-ldl"]
    subprocess.run(command, cwd=folder, check=True)
    return folder / "clock.so"


def test_a_clock_that_goes_backwards_changes_no_sum_and_no_order(house, slow_clock):
    assert house.run()["success"]
    earlier = house.spawn(
        FAULTS_RELEASE="2", LD_PRELOAD=str(slow_clock), CLOCK_BACK_SECONDS=str(WEEK)
    )
    assert earlier.outcome()["success"]
    assert house.run(FAULTS_RELEASE="2")["metadata"]["dpsynth/reused"]
    assert house.run(FAULTS_RELEASE="3")["success"]
    house.assert_whole(charges=3, released=3)
    times = [entry.recorded_at for entry in house.ledger().entries()]
    assert times[2] < times[0], "the clock did not go backwards"
    assert [entry.seq for entry in house.ledger().entries()] == list(range(1, 7))
