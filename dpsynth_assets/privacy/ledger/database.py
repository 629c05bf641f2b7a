"""The table, its append-only triggers, and the one transaction that may write to it.

SQLite keeps the rollback journal (no WAL): one file to copy and to restore, and `synchronous=EXTRA`
also syncs the folder after each commit, so that a power cut cannot undo a charge whose data was
read. Writers take the write lock at BEGIN IMMEDIATE, before they look at the budget; on PostgreSQL
an advisory lock does the same without asking for more than SELECT and INSERT rights. The database
itself refuses to change, remove or skip an entry, or to take another kind.
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection, Engine, make_url

from dpsynth_assets.privacy.errors import FORMAT, LedgerIntegrityError, PrivacyError, require_format
from dpsynth_assets.privacy.ledger.replacing import owner_folder
from dpsynth_assets.privacy.ledger.schema import KINDS, LedgerEntry

TRIGGERS = ("privacy_ledger_no_update", "privacy_ledger_no_delete", "privacy_ledger_in_order")

# INSERT OR REPLACE deletes without firing a delete trigger, hence the third one.
SQLITE_SETUP = (
    """CREATE TRIGGER privacy_ledger_no_update BEFORE UPDATE ON privacy_ledger
       BEGIN SELECT RAISE(ABORT, 'the privacy ledger is append-only'); END""",
    """CREATE TRIGGER privacy_ledger_no_delete BEFORE DELETE ON privacy_ledger
       BEGIN SELECT RAISE(ABORT, 'the privacy ledger is append-only'); END""",
    """CREATE TRIGGER privacy_ledger_in_order BEFORE INSERT ON privacy_ledger
       WHEN NEW.seq <> (SELECT COALESCE(MAX(seq), 0) + 1 FROM privacy_ledger)
       BEGIN SELECT RAISE(ABORT, 'the privacy ledger is append-only'); END""",
    f"PRAGMA user_version = {FORMAT}",
)
POSTGRES_SETUP = (
    """CREATE OR REPLACE FUNCTION privacy_ledger_refuse() RETURNS trigger LANGUAGE plpgsql AS
       $$ BEGIN RAISE EXCEPTION 'the privacy ledger is append-only'; END $$""",
    """CREATE TRIGGER privacy_ledger_no_update BEFORE UPDATE ON privacy_ledger
       FOR EACH STATEMENT EXECUTE FUNCTION privacy_ledger_refuse()""",
    """CREATE TRIGGER privacy_ledger_no_delete BEFORE DELETE OR TRUNCATE ON privacy_ledger
       FOR EACH STATEMENT EXECUTE FUNCTION privacy_ledger_refuse()""",
    """CREATE OR REPLACE FUNCTION privacy_ledger_next() RETURNS trigger LANGUAGE plpgsql AS
       $$ BEGIN
         IF NEW.seq <> (SELECT COALESCE(MAX(seq), 0) + 1 FROM privacy_ledger) THEN
           RAISE EXCEPTION 'the privacy ledger is append-only';
         END IF;
         RETURN NEW;
       END $$""",
    """CREATE TRIGGER privacy_ledger_in_order BEFORE INSERT ON privacy_ledger
       FOR EACH ROW EXECUTE FUNCTION privacy_ledger_next()""",
    f"COMMENT ON TABLE privacy_ledger IS '{FORMAT}'",
)


LOCK_WAIT_SECONDS = 60
_ADVISORY_LOCK = 0x6470_6C65_6467_6572  # "dpledger"


def _column(name: str) -> "sa.Column[object]":
    if name == "seq":
        return sa.Column(name, sa.Integer, primary_key=True, autoincrement=False)
    if name == "ex_post_epsilon":
        return sa.Column(name, sa.Double)
    return sa.Column(name, sa.Text, nullable=LedgerEntry.__annotations__[name] is not str)


TABLE = sa.Table(
    "privacy_ledger",
    sa.MetaData(),
    *(_column(name) for name in LedgerEntry._fields),
    sa.UniqueConstraint("reservation", "kind", name="privacy_ledger_once"),
    sa.CheckConstraint(f"kind IN {KINDS}", name="privacy_ledger_kind"),
    sa.Index("privacy_ledger_cohort", "cohort", "seq"),
    sa.Index("privacy_ledger_key", "key", "seq"),
)
COLUMNS = TABLE.c


def sqlite_path(url: str) -> Path | None:
    """File of a SQLite ledger; None for a database server."""
    parsed = make_url(url)
    if parsed.get_backend_name() != "sqlite":
        return None
    if not parsed.database or parsed.database == ":memory:":
        raise PrivacyError(
            f"Expected a ledger that outlives the process, got {url!r}. Name a file: "
            "sqlite:////path/to/ledger.sqlite."
        )
    return Path(parsed.database)


class Database:
    """One ledger's table. Reads are consistent snapshots; `appending` is the only way to write."""

    def __init__(self, url: str) -> None:
        self._url: URL = make_url(url)
        path = sqlite_path(url)
        if path is not None:
            _create_owner_only(path)
        with self._readable():
            self._engine = _engine(self._url, is_file=path is not None)
            self._create()

    def read(self, *conditions: sa.ColumnElement[bool]) -> Iterator[LedgerEntry]:
        """Yields the entries that meet all conditions on `COLUMNS`, in order."""
        with self._readable(), self._engine.connect() as connection:
            yield from Appender(connection).read(*conditions)

    def triggers(self) -> set[str]:
        """Names of the append-only triggers in force."""
        source = (
            "SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'privacy_ledger'"
            if self._is_sqlite
            else "SELECT tgname FROM pg_trigger WHERE tgrelid = 'privacy_ledger'::regclass "
            "AND tgenabled <> 'D'"
        )
        with self._readable(), self._engine.connect() as connection:
            return set(connection.exec_driver_sql(source).scalars())

    @contextmanager
    def appending(self) -> Iterator["Appender"]:
        """Holds the write lock over reading the budget and spending it; commits at the end."""
        with self._readable(), self._engine.connect() as connection, connection.begin():
            self._lock(connection)
            yield Appender(connection)

    @property
    def _place(self) -> str:
        return self._url.render_as_string(hide_password=True)

    @property
    def _is_sqlite(self) -> bool:
        return self._url.get_backend_name() == "sqlite"

    def _lock(self, connection: Connection) -> None:
        if self._is_sqlite:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        else:
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_ADVISORY_LOCK})")

    def _create(self) -> None:
        """Creates table and triggers where there is no table; refuses one of another format."""
        if not sa.inspect(self._engine).has_table(TABLE.name):
            with self._engine.connect() as connection, connection.begin():
                self._lock(connection)
                if not sa.inspect(connection).has_table(TABLE.name):
                    self._require_new(connection)
                    TABLE.create(connection)
                    for statement in SQLITE_SETUP if self._is_sqlite else POSTGRES_SETUP:
                        connection.exec_driver_sql(statement)
        query = (
            "PRAGMA user_version"
            if self._is_sqlite
            else "SELECT obj_description('privacy_ledger'::regclass, 'pg_class')"
        )
        with self._engine.connect() as connection:
            found = connection.exec_driver_sql(query).scalar() or None
            names = {each["name"] for each in sa.inspect(connection).get_columns(TABLE.name)}
        if found is not None and names != set(LedgerEntry._fields):
            found = f"{found} with other columns, from before version 0.3"
        require_format(f"the ledger at {self._place}", found)

    def _require_new(self, connection: Connection) -> None:
        """Refuses a file of another format, or one that lost its table: it would seem unspent."""
        if not self._is_sqlite:
            return  # The table carries the mark, and other tables are other services' own.
        version = connection.exec_driver_sql("PRAGMA user_version").scalar()
        if version or sa.inspect(connection).get_table_names():
            found = f"{version or 'none'}, without a table {TABLE.name}"
            require_format(f"the ledger at {self._place}", found)

    @contextmanager
    def _readable(self) -> Iterator[None]:
        """Turns what a database may raise into one line."""
        try:
            yield
        except (sa.exc.OperationalError, sa.exc.InterfaceError) as error:
            raise PrivacyError(
                f"The ledger at {self._place} is not available ({_reason(error)}). Nothing private "
                "may be read without it: check its permissions or the server, and try again."
            ) from None
        except sa.exc.DatabaseError as error:
            raise LedgerIntegrityError(
                f"The ledger at {self._place} cannot be used ({_reason(error)}). Nothing private "
                "may be read without it: restore it from a backup."
            ) from None


class Appender:
    """Operations allowed while the write lock is held."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.appended: LedgerEntry | None = None

    def read(self, *conditions: sa.ColumnElement[bool]) -> Iterator[LedgerEntry]:
        """Yields the driver's own tuples: SQLAlchemy's rows cost a sixth of a long read."""
        query = sa.select(TABLE).where(*conditions).order_by(COLUMNS.seq)
        rows = cast("Iterator[tuple[Any, ...]]", self._connection.execute(query).cursor)
        yield from map(LedgerEntry._make, rows)

    def append(self, entry: LedgerEntry) -> None:
        """Writes one sealed entry."""
        self._connection.execute(TABLE.insert().values(**entry._asdict()))
        self.appended = entry


def _reason(error: sa.exc.DBAPIError) -> str:
    return str(error.orig).strip().splitlines()[0]


def _create_owner_only(path: Path) -> None:
    """Creates file (0600) and folder (0700) where they are missing; leaves existing ones alone."""
    if path.exists():
        return
    try:
        owner_folder(path.parent)
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
    except OSError as error:
        raise PrivacyError(
            f"Expected a ledger file that can be created, got {path} ({error.strerror}). Set "
            "DPSYNTH_LEDGER_URL to a place you own."
        ) from None


def _engine(url: URL, *, is_file: bool) -> Engine:
    """An engine without pool, so that a forked process never shares a connection."""
    options = {"timeout": LOCK_WAIT_SECONDS} if is_file else {}
    engine = sa.create_engine(url, poolclass=sa.pool.NullPool, connect_args=options)
    if is_file:
        sa.event.listen(engine, "connect", _configure_sqlite)
    return engine


def _configure_sqlite(connection: sqlite3.Connection, _record: object) -> None:
    """Leaves BEGIN to us and makes a commit survive a power cut."""
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute("PRAGMA synchronous=EXTRA")
    cursor.close()
