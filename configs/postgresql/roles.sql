-- Who may do what in a ledger on PostgreSQL.
--
--     createdb batchq
--     psql -d batchq -f roles.sql         as an administrator; then give both a password,
--     \password batchq_owner              or let pg_hba.conf decide how they prove who they are
--     batchq init --ledger postgresql://batchq_owner@HOST/batchq
--     psql -d batchq -f roles.sql         once more: now the tables are there
--
-- It may be repeated at any time, and has to be after each `batchq init` that upgrades the
-- schema. For a ledger with ?schema=NAME, write that name for `public` throughout.

DO $$
BEGIN
  IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'batchq_owner') THEN
    CREATE ROLE batchq_owner LOGIN;
  END IF;
  IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'batchq_worker') THEN
    CREATE ROLE batchq_worker LOGIN;
  END IF;
END $$;

-- The owner runs `batchq init`, and `batchq verify --repair`.
GRANT USAGE, CREATE ON SCHEMA public TO batchq_owner;

-- Everything else, enqueue and retry too, runs as the worker, which cannot create, alter or
-- drop a table.
GRANT USAGE ON SCHEMA public TO batchq_worker;

DO $$
BEGIN
  IF to_regclass('public.batchq_version') IS NULL THEN
    RETURN;
  END IF;
  GRANT SELECT ON public.batchq_version TO batchq_worker;
  GRANT SELECT, INSERT, UPDATE ON
    public.runs, public.workers, public.documents, public.items TO batchq_worker;
  -- Rows come and go. UPDATE is what locking a row asks for.
  GRANT SELECT, INSERT, UPDATE, DELETE ON
    public.ready, public.delayed, public.leased, public.dead_letters, public.superseded
    TO batchq_worker;
  -- What was committed stays as it is, also for somebody who has stolen a worker's password.
  GRANT SELECT, INSERT ON public.results, public.fenced TO batchq_worker;
  GRANT SELECT ON public.results_history TO batchq_worker;
  GRANT USAGE ON SEQUENCE
    public.runs_id_seq, public.workers_id_seq, public.items_id_seq TO batchq_worker;
END $$;
