"""Refusals by the database itself: to change, remove or skip an entry, or to take another kind."""

import re
from collections.abc import Sequence

from sqlalchemy.engine import Connection

NAMES = ("privacy_ledger_no_update", "privacy_ledger_no_delete", "privacy_ledger_in_order")

# INSERT OR REPLACE deletes without firing a delete trigger, hence the third one.
SQLITE = (
    """CREATE TRIGGER privacy_ledger_no_update BEFORE UPDATE ON privacy_ledger
       BEGIN SELECT RAISE(ABORT, 'the privacy ledger is append-only'); END""",
    """CREATE TRIGGER privacy_ledger_no_delete BEFORE DELETE ON privacy_ledger
       BEGIN SELECT RAISE(ABORT, 'the privacy ledger is append-only'); END""",
    """CREATE TRIGGER privacy_ledger_in_order BEFORE INSERT ON privacy_ledger
       WHEN NEW.seq <> (SELECT COALESCE(MAX(seq), 0) + 1 FROM privacy_ledger)
       BEGIN SELECT RAISE(ABORT, 'the privacy ledger is append-only'); END""",
)
POSTGRES = (
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
)


def kinds_allowed(kinds: Sequence[str]) -> str:
    """The condition that every entry is of a known kind."""
    return f"kind IN ({', '.join(repr(kind) for kind in kinds)})"


def widening(kinds: Sequence[str]) -> str:
    """Statements that let an older PostgreSQL table take entries of these kinds."""
    return (
        "ALTER TABLE privacy_ledger DROP CONSTRAINT privacy_ledger_kind, "
        f"ADD CONSTRAINT privacy_ledger_kind CHECK ({kinds_allowed(kinds)})"
    )


def widen_postgres(connection: Connection, kinds: Sequence[str]) -> None:
    """Lets an older table take entries of these kinds; nothing where it does already."""
    source = (
        "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = 'privacy_ledger_kind' "
        "AND conrelid = 'privacy_ledger'::regclass"
    )
    known = connection.exec_driver_sql(source).scalar() or ""
    if not all(f"'{kind}'" in known for kind in kinds):
        connection.exec_driver_sql(widening(kinds))


def widen_sqlite(connection: Connection, kinds: Sequence[str]) -> None:
    """Lets an older table take entries of these kinds; nothing where it does already.

    SQLite cannot alter a condition. Its manual (ALTER TABLE, "Making Other Kinds Of Table Schema
    Changes") gives this way for changes that touch no row.
    """
    source = "SELECT sql FROM sqlite_master WHERE type = 'table' AND name = 'privacy_ledger'"
    made = str(connection.exec_driver_sql(source).scalar_one())
    if all(f"'{kind}'" in made for kind in kinds):
        return
    wider = re.sub(r"kind IN \([^)]*\)", kinds_allowed(kinds), made)
    version = int(connection.exec_driver_sql("PRAGMA schema_version").scalar_one())
    connection.exec_driver_sql("PRAGMA writable_schema = ON")
    connection.exec_driver_sql(
        "UPDATE sqlite_master SET sql = ? WHERE type = 'table' AND name = 'privacy_ledger'",
        (wider,),
    )
    connection.exec_driver_sql(f"PRAGMA schema_version = {version + 1}")
    connection.exec_driver_sql("PRAGMA writable_schema = OFF")
