-- Run once by the PostgreSQL image, as its superuser. Two databases, two users: whoever may tidy up
-- runs may not touch what was spent, and the ledger's triggers refuse changes even by its owner.
\getenv dagster_password DAGSTER_PG_PASSWORD
\getenv ledger_password DPSYNTH_LEDGER_PASSWORD
CREATE USER dagster PASSWORD :'dagster_password';
CREATE USER ledger PASSWORD :'ledger_password';
CREATE DATABASE dagster OWNER dagster;
CREATE DATABASE ledger OWNER ledger;
REVOKE ALL ON DATABASE dagster, ledger FROM PUBLIC;
