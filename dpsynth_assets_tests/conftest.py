"""What every test shares: tiny models, a PostgreSQL server, and names that workers agree on."""

import gc
import os
import pwd
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, settings

from dpsynth_assets_tests.children import free_port
from dpsynth_assets_tests.tiny_models import write_generator, write_language_model

if TYPE_CHECKING:
    from alembic.config import Config

    from dpsynth_assets.models.conditional_generator.generator import ConditionalGenerator
    from dpsynth_assets.models.language_model import LanguageModel
    from dpsynth_assets.privacy.ledger import Ledger

# Tests are never timed: a busy machine draws examples slowly, and fails nothing by it.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

# Databases of Dagster wait for the disk at every event: in memory, where it is plenty, not.
MEMORY, PLENTY = Path("/dev/shm"), 6 << 30
if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > PLENTY:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

PATIENCE_SECONDS = 120

LONGEST_FIRST = (
    "end_to_end/test_installation.py",  # Makes what other files of its folder wait for.
    "web/test_walk.py",
    "security/test_leak_scan.py",
    "end_to_end/test_readme_python.py",
    "conformance/test_row_invariance.py",
    "end_to_end/test_partitions.py",
    "benchmarks/test_real_text.py",
    "end_to_end/test_served_releases.py",
    "conformance/test_planted_bugs.py",
    "benchmark/test_benchmark_runs.py",
    "benchmarks/test_growth.py",
    "security/test_services.py",
    "chaos/test_chaos.py",
    *("end_to_end", "faults", "security", "conformance", "assets", "methods", "run"),
    *("test_live_runs.py", "test_refused_runs.py"),
)
"""Files and folders that take longest: begun last, one would run on while other workers idle."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collects no garbage among what is imported: it stays, and no later collection looks at it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        if "dagster" in sys.modules:
            _read_migrations_once()


def _read_migrations_once() -> None:
    """Dagster's migrations stay as read: else every database of every run reads them anew."""
    from alembic.script import ScriptDirectory

    read, kept = ScriptDirectory.from_config, {}

    def once(config: "Config") -> ScriptDirectory:
        place = config.get_main_option("script_location")
        if place not in kept:
            kept[place] = read(config)
        return kept[place]

    ScriptDirectory.from_config = once


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Forgets the state storage of a Dagster instance that is gone.

    Instances that close in another order than they opened leave it behind as the current one, and
    every definition that this process loads later would ask it.
    """
    states = sys.modules.get("dagster._core.storage.defs_state.base")
    kept = None if states is None else states._current_storage.get()
    if kept is not None and kept.has_instance and kept._instance_weakref() is None:
        states._current_storage.set(None)


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Names bytes by their argument: each worker writes an archive's bytes, and its clock, anew."""
    return argname if isinstance(val, bytes) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that take longest come first; otherwise the order stays."""
    here = Path(__file__).parent

    def rank(item: pytest.Item) -> int:
        file = item.path.relative_to(here)
        names = (file.as_posix(), file.parts[0])
        return next(
            (i for i, name in enumerate(LONGEST_FIRST) if name in names), len(LONGEST_FIRST)
        )

    items.sort(key=rank)


@pytest.fixture
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of this test's own, not there yet; no ledger, store or dataset files elsewhere."""
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path / "home"))
    for name in ("DPSYNTH_LEDGER_URL", "DPSYNTH_STORE_URL", "DPSYNTH_DATASETS"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "home"


@pytest.fixture
def own_datasets(tmp_path: Path, own_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of dataset files beside the package's own."""
    del own_home
    folder = tmp_path / "datasets"
    folder.mkdir()
    monkeypatch.setenv("DPSYNTH_DATASETS", str(folder))
    return folder


@pytest.fixture
def ledger(tmp_path: Path) -> "Ledger":
    """A ledger without entries in this test's folder."""
    from dpsynth_assets.privacy.ledger import Ledger

    return Ledger(f"sqlite:///{tmp_path / 'ledger' / 'ledger.sqlite'}")


@pytest.fixture
def known_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """No machine is tried: minutes are those of a known one."""
    from dpsynth_assets.advice import minutes
    from dpsynth_assets_tests.advice.conftest import speed_of

    monkeypatch.setattr(minutes, "machine_speed", lambda _base: speed_of())


@pytest.fixture(scope="session")
def toy_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a tiny language model with random weights."""
    return write_language_model(tmp_path_factory.mktemp("models") / "toy")


@pytest.fixture(scope="session")
def toy_model(toy_folder: Path) -> "LanguageModel":
    """That model, opened."""
    from dpsynth_assets.models.language_model import load_language_model

    return load_language_model(toy_folder, device="cpu")


@pytest.fixture(scope="session")
def toy_generator_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a tiny encoder-decoder with random weights."""
    return write_generator(tmp_path_factory.mktemp("models") / "toy_generator")


@pytest.fixture(scope="session")
def toy_generator(toy_generator_folder: Path) -> "ConditionalGenerator":
    """That model, opened."""
    from dpsynth_assets.models.conditional_generator.generator import load_conditional_generator

    return load_conditional_generator(toy_generator_folder, device="cpu")


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[sa.URL]:
    """URL of a server that lives as long as the session, with fsync on as in a real house."""
    with own_postgres() as server:
        yield server.url


@contextmanager
def own_postgres() -> Iterator["PostgresServer"]:
    """A running server that ends with the block; skips where there can be none."""
    programs = _programs()
    if programs is None:
        pytest.skip("PostgreSQL tests need initdb and pg_ctl")
    user = "postgres" if os.geteuid() == 0 else None
    if user is not None and user not in {each.pw_name for each in pwd.getpwall()}:
        pytest.skip("PostgreSQL refuses to run as root, and there is no user `postgres`")
    folder = Path(tempfile.mkdtemp(prefix="dpsynth-postgres-"))
    try:
        if user is not None:
            shutil.chown(folder, user)
        server = PostgresServer(programs, folder, user)
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def postgres_url(postgres_server: sa.URL) -> str:
    """URL of a database without a ledger."""
    return emptied(postgres_server)


def emptied(server: sa.URL) -> str:
    """Empties a database, many times faster than a new one is made with fsync; returns its URL."""
    engine = sa.create_engine(server, poolclass=sa.pool.NullPool)
    with engine.begin() as connection:  # A session left open holds its locks.
        connection.exec_driver_sql(f"SET lock_timeout = '{PATIENCE_SECONDS}s'")
        connection.exec_driver_sql("DROP SCHEMA public CASCADE")
        connection.exec_driver_sql("CREATE SCHEMA public")
    return server.render_as_string(hide_password=False)


class PostgresServer:
    """A cluster of its own, which may be stopped and started again at the same address."""

    def __init__(self, programs: Path, folder: Path, user: str | None) -> None:
        self.programs, self.data, self.user = programs, folder / "data", user
        self.folder, self.port = folder, free_port()
        password, secret = secrets.token_hex(16), self.folder / "password"
        secret.write_text(password)
        if self.user is not None:
            shutil.chown(secret, self.user)
        cluster = f"-U tests -A password --pwfile={secret} -E UTF8 --locale=C"
        self._run("initdb", "-D", str(self.data), *cluster.split())
        own = ("tests", password, "127.0.0.1", self.port, "postgres")
        self.url = sa.URL.create("postgresql+psycopg2", *own)

    def start(self) -> None:
        settings = (
            f"-c listen_addresses=127.0.0.1 -p {self.port}"
            f" -c unix_socket_directories={self.folder} -c shared_buffers=16MB"
            " -c max_connections=40"
        )
        log = str(self.folder / "log")
        self._run("pg_ctl", "-D", str(self.data), "-l", log, "-w", "-o", settings, "start")

    def stop(self) -> None:
        """Cuts every connection at once, as a power cut would."""
        self._run("pg_ctl", "-D", str(self.data), "-m", "immediate", "-w", "stop")

    def _run(self, program: str, *arguments: str) -> None:
        """Runs one of the server's programs, as a user that the server accepts."""
        subprocess.run(
            [str(self.programs / program), *arguments],
            user=self.user,
            group=self.user,
            extra_groups=None if self.user is None else [],
            cwd=self.folder,
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            timeout=PATIENCE_SECONDS,
        )


def _programs() -> Path | None:
    """Folder of initdb and pg_ctl: on PATH, or where Debian keeps the newest version."""
    found = shutil.which("pg_ctl")
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda p: int(p.parent.name))
    folders = [*([Path(found).resolve().parent] if found else []), *debian[::-1]]
    return next((f for f in folders if (f / "initdb").exists()), None)
