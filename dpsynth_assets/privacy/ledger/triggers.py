"""What makes the table append-only: triggers that refuse to change, remove or skip an entry."""

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
