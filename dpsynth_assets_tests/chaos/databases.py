"""Where an installation keeps runs and ledger in chaos rounds, and how its ledger is lost."""

import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import sqlalchemy as sa

from dpsynth_assets_tests import conftest as servers

SQLITE = "sqlite"


class Storage(Protocol):
    """A database of an installation."""

    settings: str

    def lost(self) -> AbstractContextManager[None]:
        """Takes the ledger away, as a person, a disk or a backup might."""
        ...


@dataclass
class _Files:
    house: Any
    settings: str = ""

    @contextmanager
    def lost(self) -> Iterator[None]:
        folder = self.house.home / "ledger"
        aside = folder.with_name(f"ledger aside {secrets.token_hex(2)}")
        folder.rename(aside)
        try:
            yield
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            aside.rename(folder)


@dataclass
class _Schema:
    url: sa.URL
    settings: str

    @contextmanager
    def lost(self) -> Iterator[None]:
        servers._execute(self.url, "ALTER TABLE privacy_ledger RENAME TO ledger_aside")
        try:
            yield
        finally:
            servers._execute(
                self.url,
                "DROP TABLE IF EXISTS privacy_ledger",
                "ALTER TABLE ledger_aside RENAME TO privacy_ledger",
            )


@contextmanager
def storage(name: str, house: Any) -> Iterator[Storage]:
    """Files in the house, or a PostgreSQL server that lives as long as the block."""
    if name == SQLITE:
        yield _Files(house)
        return
    programs = servers._programs()
    assert programs is not None, "needs initdb and pg_ctl: apt-get install postgresql"
    user = "postgres" if servers.os.geteuid() == 0 else None
    folder = Path(tempfile.mkdtemp(prefix="dpsynth-chaos-postgres-"))
    if user is not None:
        shutil.chown(folder, user)
    server = servers._Server(programs, folder, user)
    port, password = server.start()
    try:
        url = sa.URL.create("postgresql+psycopg2", "tests", password, "127.0.0.1", port, "postgres")
        house.variables["DPSYNTH_LEDGER_URL"] = url.render_as_string(hide_password=False)
        yield _Schema(
            url,
            "storage: {postgres: {postgres_db: {scheme: postgresql+psycopg2, hostname: 127.0.0.1,"
            f" port: {port}, username: tests, password: {password}, db_name: postgres}}}}}}\n",
        )
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
