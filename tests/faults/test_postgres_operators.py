"""PostgreSQL as its operators run it: poolers, roles, schemas, TLS, passwords, standbys."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from batchq.clock import ManualClock, random_hex
from batchq.errors import (
    AccessDenied,
    BatchqError,
    ExitCode,
    LedgerNotInitialised,
    LedgerUnreachable,
    UsageError,
)
from batchq.lease import new_token
from batchq.ledger.base import Role
from batchq.ledger.schema import metadata
from batchq.ledger.sql import SqlLedger, postgresql, postgresql_refusals, statements
from batchq.ledger.sql.names import HEAD
from batchq.result import Result, Stored
from tests.conformance.recount import recount
from tests.faults.certificates import Authority
from tests.faults.pgbouncer import pgbouncer_program, running_pgbouncer
from tests.faults.postgres_proxy import PostgresProxy
from tests.faults.test_postgres_cuts import socket_of
from tests.ledger_story import document, repair, tell
from tests.postgres import WITH_PASSWORD, create_database, drop_database, running_server

ROLES = Path(__file__).parents[2] / "configs" / "postgresql" / "roles.sql"
SECRET = "s3cret-Pw/x"


@pytest.fixture(scope="module")
def server() -> str:
    return running_server()


@pytest.fixture
def url(server: str) -> Iterator[str]:
    """The address of an empty database."""
    name = f"operators_{random_hex(32)}"
    yield create_database(server, name)
    drop_database(server, name)


@pytest.fixture(scope="module")
def proxy(server: str) -> Iterator[PostgresProxy]:
    with PostgresProxy(socket_of(server)) as proxy:
        yield proxy


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is tried again is tried soon."""
    monkeypatch.setattr(postgresql_refusals, "random_fraction", lambda: 0.02)


def over_tcp(url: str, port: int, user: str = "postgres") -> str:
    return f"postgresql://{user}@127.0.0.1:{port}{urlsplit(url).path}"


def administer(url: str, *statements: str) -> list[tuple[Any, ...]]:
    """Each as the server's administrator; what the last one brought."""
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def whole_story(url: str, *, repairs: bool = True) -> None:
    """Every verb, on every path through it; the rows are recounted."""
    clock = ManualClock()
    ledger = SqlLedger(url, clock=clock, ledger_clock=clock, patience=2.0)
    run = ledger.create_run("run", "stats-1", {"kind": "stats"}, "item")
    tell(ledger, run, clock)
    if repairs:
        repair(ledger, run)
    ledger.close()


def initialise(url: str) -> None:
    ledger = SqlLedger(url, patience=60.0)
    ledger.initialise()
    ledger.check()
    ledger.close()


# -- pgbouncer --------------------------------------------------------------------------------


@pytest.fixture
def pooled(url: str, proxy: PostgresProxy) -> Iterator[str]:
    """The same database by way of pgbouncer, which has three sessions for all its clients."""
    program = pgbouncer_program()
    if program is None:
        # A program of the system's, which no Python package brings.
        pytest.skip("pgbouncer is not installed here: apt-get install pgbouncer")
    with running_pgbouncer(program, proxy.port, sessions=3) as port:
        yield over_tcp(url, port)


def test_every_verb_works_through_pgbouncer(pooled: str, url: str) -> None:
    """In transaction mode, from the creation of the schema on."""
    initialise(pooled)
    whole_story(pooled)
    assert recount(url, 1)["total"] > 40


def drain(url: str, worker: str) -> None:
    """Claim and commit, a few at a time, until nothing is left."""
    ledger = SqlLedger(url)
    run = ledger.find_run("run")
    assert run is not None
    ledger.register(run, worker, 60.0, Role.WORKER, {})
    while lease := ledger.claim(worker, new_token(), 5, alone=True):
        stored = Stored("run/1.json", 0, 1, "0" * 64)
        results = [Result(item.id, lease.token, stored) for item in lease.items]
        assert len(ledger.commit(worker, results).accepted) == len(results)
        ledger.beat(worker, 60.0)
    ledger.stop(worker, "end")
    ledger.close()


def test_workers_share_the_sessions_of_pgbouncer(pooled: str, url: str) -> None:
    """Six workers, three sessions: nobody finds the settings or statements of another."""
    initialise(pooled)
    ledger = SqlLedger(pooled)
    run = ledger.create_run("run", "stats-1", {"kind": "stats"}, "item")
    ledger.register(run, "e", 60.0, Role.ENQUEUER, {})
    ledger.enqueue("e", 1, [document(n) for n in range(300)])
    ledger.stop("e", "end")
    with ThreadPoolExecutor(6) as pool:
        for future in [pool.submit(drain, pooled, f"w{n}") for n in range(6)]:
            future.result()
    assert recount(url, run.id)["completed"] == 300
    ledger.close()


def test_a_pooled_transaction_brings_its_settings_and_leaves_none(pooled: str) -> None:
    """The plans and time limits hold within it, and the next client's session is clean."""
    initialise(pooled)
    ledger = SqlLedger(f"{pooled}?schema=team")
    ledger.initialise()
    names = ("enable_seqscan", "statement_timeout", "search_path", "transaction_isolation")
    show = "SELECT " + ", ".join(f"current_setting('{name}')" for name in names)
    within = ledger._database.single(lambda tx: tx.rows(show))
    assert within == [("off", "1min", "team", "read committed")]
    for _ in range(6):
        with psycopg.connect(pooled) as other:
            row = other.execute(show).fetchone()
            assert row == ("on", "0", '"$user", public', "read committed")
    ledger.close()


def test_a_ledger_that_took_a_pooler_for_its_server_is_caught(
    pooled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """These tests can fail: settings of the session would not hold."""

    def usual(self: Any, connection: Any, begin: str | None) -> str | None:
        return begin

    monkeypatch.setattr(postgresql.Postgresql, "opening", usual)
    with pytest.raises(AssertionError):
        test_a_pooled_transaction_brings_its_settings_and_leaves_none(pooled)


def test_without_a_pooler_statements_are_prepared(url: str) -> None:
    """The session is the ledger's own, and one statement is one round trip."""
    driver = postgresql.Postgresql(url)
    connection = driver.connect()
    assert connection.prepare_threshold is not None
    assert driver.opening(connection, None) is None
    assert connection.execute("SHOW enable_seqscan").fetchone() == ("off",)
    connection.close()


# -- roles ------------------------------------------------------------------------------------


@pytest.fixture
def roles(url: str) -> Iterator[tuple[str, str]]:
    """An owner and a worker, as configs/postgresql/roles.sql makes them; the schema is there."""
    mark = random_hex(32)
    owner, worker = f"owner_{mark}", f"worker_{mark}"
    script = ROLES.read_text().replace("batchq_owner", owner).replace("batchq_worker", worker)
    administer(url, script)
    initialise(as_user(url, owner))
    administer(url, script, script)
    yield owner, worker
    for role in (worker, owner):
        administer(url, f"DROP OWNED BY {role} CASCADE", f"DROP ROLE {role}")


def as_user(url: str, user: str) -> str:
    return url.replace("//postgres:@", f"//{user}@")


def test_a_worker_needs_only_its_grants(url: str, roles: tuple[str, str]) -> None:
    """Every verb of enqueue, worker, status, results, failures, retry and verify."""
    whole_story(as_user(url, roles[1]), repairs=False)


def test_only_the_owner_repairs(url: str, roles: tuple[str, str]) -> None:
    """To reopen a result is to take it out of `results`, which a worker may not."""
    whole_story(as_user(url, roles[1]), repairs=False)
    for role in roles[::-1]:
        ledger = SqlLedger(as_user(url, role))
        run = ledger.find_run("run")
        assert run is not None
        if role == roles[1]:
            with pytest.raises(AccessDenied, match="results"):
                repair(ledger, run)
        else:
            repair(ledger, run)
        ledger.close()


@pytest.mark.parametrize(
    "forbidden",
    [
        "DELETE FROM results",
        "UPDATE results SET sha256 = ''",
        "DELETE FROM items",
        "DROP TABLE ready",
        "ALTER TABLE ready ADD COLUMN more text",
        "CREATE TABLE more (name text)",
        "TRUNCATE ready",
        "UPDATE batchq_version SET version_num = '9999'",
    ],
)
def test_a_worker_cannot_do_more(url: str, roles: tuple[str, str], forbidden: str) -> None:
    """No DDL, and no way to change what was committed."""
    with (
        psycopg.connect(as_user(url, roles[1])) as connection,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        connection.execute(forbidden.encode())


def test_a_worker_cannot_initialise(url: str, roles: tuple[str, str]) -> None:
    """It is told so; where the schema is there already, there is nothing to do."""
    initialise(as_user(url, roles[1]))
    ledger = SqlLedger(f"{as_user(url, roles[1])}&schema=fresh", patience=60.0)
    with pytest.raises(AccessDenied, match="permission denied") as caught:
        ledger.initialise()
    assert "roles.sql" in (caught.value.hint or "")
    ledger.close()


def test_the_grants_name_every_table() -> None:
    """A table that a revision adds is granted too."""
    script = ROLES.read_text()
    assert [name for name in metadata.tables if f"public.{name}" not in script] == []


# -- schemas ----------------------------------------------------------------------------------


def test_two_projects_in_one_database(url: str) -> None:
    """Each has its tables, its version and its numbers; the default schema stays empty.

    `user` is a word of SQL's own.
    """
    teams = [f"{url}&schema=team_a", f"{url}&schema=user"]
    for team in teams:
        initialise(team)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(whole_story, teams))
    for name in ("team_a", '"user"'):
        assert administer(url, f"SELECT version_num FROM {name}.batchq_version") == [(HEAD,)]
        assert administer(url, f"SELECT min(id), max(id) FROM {name}.runs") == [(1, 1)]
        assert administer(url, f"SELECT count(*) > 40 FROM {name}.items") == [(True,)]
    assert administer(url, "SELECT * FROM pg_tables WHERE schemaname = 'public'") == []


def test_a_schema_beside_a_ledger_in_the_default_one(url: str) -> None:
    """What is in `public` is neither found nor refused."""
    initialise(url)
    ledger = SqlLedger(f"{url}&schema=team_a")
    with pytest.raises(LedgerNotInitialised, match="no batchq ledger"):
        ledger.check()
    ledger.initialise()
    ledger.check()
    ledger.close()


def test_a_schema_that_is_there_needs_no_right_to_create_one(url: str) -> None:
    """An administrator makes it, and a role that owns only that initialises."""
    role = f"owner_{random_hex(32)}"
    administer(url, f"CREATE ROLE {role} LOGIN", f"CREATE SCHEMA theirs AUTHORIZATION {role}")
    initialise(f"{as_user(url, role)}&schema=theirs")
    administer(url, f"DROP OWNED BY {role} CASCADE", f"DROP ROLE {role}")


@pytest.mark.parametrize("name", ["", "pg_mine", "Team", "a b", "a;DROP TABLE x", "1st", 'a"b'])
def test_names_of_no_schema_are_refused(name: str) -> None:
    """Before anything is asked of a server."""
    with pytest.raises(UsageError, match="names no usable schema") as caught:
        SqlLedger(f"postgresql://u:{SECRET.replace('/', '%2F')}@h/db?schema={name}")
    assert "s3cret" not in str(caught.value)


def test_the_rest_of_the_address_reaches_libpq() -> None:
    """`schema` is the only word of ours in it."""
    driver = postgresql.Postgresql("postgresql://h/db?sslmode=require&schema=a&connect_timeout=3")
    assert driver._conninfo == "postgresql://h/db?sslmode=require&connect_timeout=3"
    assert postgresql.Postgresql("postgresql://h/db?schema=a")._conninfo == "postgresql://h/db"
    assert driver.url.endswith("schema=a&connect_timeout=3")


# -- standbys and failover --------------------------------------------------------------------


def test_a_server_that_takes_no_writes_is_named(url: str) -> None:
    """A standby by mistake: what it is, and what to name instead."""
    initialise(url)
    administer(
        url, f"ALTER DATABASE {urlsplit(url).path[1:]} SET default_transaction_read_only = on"
    )
    ledger = SqlLedger(url, patience=0.2)
    ledger.check()
    with pytest.raises(LedgerUnreachable, match=r"takes no writes: .* standby") as caught:
        ledger.create_run("run", "stats-1", {}, "item")
    assert "primary" in (caught.value.hint or "")
    ledger.close()


def test_a_standby_that_is_promoted_takes_the_call(url: str, server: str) -> None:
    """The connection to it is given up: the address may lead to another server by now."""
    initialise(url)
    name = urlsplit(url).path[1:]
    administer(url, f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    ledger = SqlLedger(url, patience=60.0)
    ledger.check()
    promote = threading.Timer(
        0.3, administer, (server, f"ALTER DATABASE {name} RESET default_transaction_read_only")
    )
    promote.start()
    assert ledger.create_run("run", "stats-1", {}, "item").id == 1
    promote.join()
    ledger.close()


def test_several_hosts_lead_to_the_one_that_takes_writes(
    url: str, proxy: PostgresProxy, server: str
) -> None:
    """Without another word in the address; with one, that counts."""
    initialise(url)
    port, path = proxy.port, urlsplit(url).path
    both = f"postgresql://postgres@127.0.0.1:1,127.0.0.1:{port}{path}"
    ledger = SqlLedger(both, patience=60.0)
    assert ledger.create_run("run", "stats-1", {}, "item").id == 1
    ledger.close()
    assert postgresql.Postgresql(both)._options["target_session_attrs"] == "read-write"
    given = postgresql.Postgresql(f"{both}?target_session_attrs=any")
    assert "target_session_attrs" not in given._options


# -- refusals ---------------------------------------------------------------------------------


def refuse_writes(url: str, state: str, times: int) -> None:
    """Let the server answer the next so many writes to `runs` with this SQLSTATE."""
    administer(
        url,
        "CREATE SEQUENCE tries",
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        f"IF nextval('tries') <= {times} THEN RAISE EXCEPTION 'refused' USING ERRCODE = '{state}'; "
        "END IF; RETURN NEW; END $$",
        "CREATE TRIGGER refuse BEFORE INSERT ON runs FOR EACH ROW EXECUTE FUNCTION refuse()",
    )


@pytest.mark.parametrize("state", ["40001", "40P01", "25P03", "57P01", "53300", "08006"])
def test_what_passes_is_tried_again(url: str, state: str) -> None:
    """Serialization, deadlock, a transaction ended, a shutdown, no connection free."""
    initialise(url)
    refuse_writes(url, state, 3)
    ledger = SqlLedger(url, patience=60.0)
    assert ledger.create_run("run", "stats-1", {}, "item").name == "run"
    assert administer(url, "SELECT last_value FROM tries") == [(4,)]
    ledger.close()


@pytest.mark.parametrize(
    ("state", "code", "message", "hint"),
    [
        ("40001", ExitCode.LEDGER_UNREACHABLE, "too busy", "pg_stat_activity"),
        ("57014", ExitCode.LEDGER_UNREACHABLE, "takes too long", "pg_stat_activity"),
        ("55P03", ExitCode.LEDGER_UNREACHABLE, "takes too long", "pg_stat_activity"),
        ("53100", ExitCode.LEDGER_UNREACHABLE, "no space is left", "free some space"),
        ("53300", ExitCode.LEDGER_UNREACHABLE, "no connection free", "pgbouncer"),
        ("25P03", ExitCode.LEDGER_UNREACHABLE, "stood still", "stopped for a while"),
        ("25006", ExitCode.LEDGER_UNREACHABLE, "takes no writes", "primary"),
        ("42501", ExitCode.ACCESS_DENIED, "refuses access", "roles.sql"),
        ("28000", ExitCode.ACCESS_DENIED, "refuses access", "PGPASSWORD"),
        ("42P01", ExitCode.LEDGER_NOT_INITIALISED, "holds no batchq ledger", "batchq init"),
        ("22012", ExitCode.ERROR, "refused a statement", None),
    ],
)
def test_what_stays_is_named(
    url: str, state: str, code: ExitCode, message: str, hint: str | None
) -> None:
    """Each refusal has its message, its way out and its exit code."""
    initialise(url)
    refuse_writes(url, state, 10_000)
    ledger = SqlLedger(url, patience=0.1)
    with pytest.raises(BatchqError, match=message) as caught:
        ledger.create_run("run", "stats-1", {}, "item")
    assert caught.value.exit_code is code
    assert (hint or "") in (caught.value.hint or "")
    assert caught.value.__cause__ is None
    ledger.close()


def test_a_statement_that_takes_too_long(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The session's own limit ends it, and nothing is left half done."""
    initialise(url)
    with monkeypatch.context() as patch, psycopg.connect(url) as other:
        patch.setitem(postgresql._SETTINGS, "statement_timeout", "100ms")
        other.execute("LOCK TABLE runs")
        hasty = SqlLedger(url)
        with pytest.raises(LedgerUnreachable, match="statement timeout"):
            hasty.create_run("run", "stats-1", {}, "item")
        hasty.close()
    ledger = SqlLedger(url)
    assert ledger.find_run("run") is None
    ledger.close()


def test_two_transactions_in_each_others_way(url: str) -> None:
    """The server ends one of two that wait for each other, and that one is run again."""
    name = urlsplit(url).path[1:]
    administer(url, f"ALTER DATABASE {name} SET deadlock_timeout = '20ms'")
    initialise(url)
    ledger = SqlLedger(url, patience=60.0)
    run = ledger.create_run("run", "stats-1", {}, "item")
    for worker in ("a", "b"):
        ledger.register(run, worker, 60.0, Role.WORKER, {})
    met = threading.Barrier(2)
    tries = []

    def lock(first: str, second: str) -> None:
        def work(tx: Any) -> None:
            tries.append(first)
            tx.rows(statements.PROCESS, worker=first)
            if len(tries) <= 2:
                met.wait(60)
            tx.rows(statements.PROCESS, worker=second)

        ledger._database.write(work)

    with ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(lock, "a", "b"), pool.submit(lock, "b", "a")]:
            future.result()
    assert len(tries) == 3
    ledger.close()


@pytest.mark.parametrize(
    "address",
    [
        f"postgresql://user:{SECRET}@127.0.0.1/db",
        "postgresql://user:s3cret@Pw@127.0.0.1/db",
        "postgresql://user:1/s3cret@127.0.0.1/db",
        "postgresql://user:s3cret%2@127.0.0.1/db",
        "postgresql://user:s3cret@127.0.0.1/db?sslmod=require",
        "postgresql://user:s3cret@127.0.0.1/db?sslmode=bogus",
        "postgresql://user:s3cret@127.0.0.1:99999999/db",
        "postgresql://user:s3cret@127.0.0.1/db?service=absent",
        "postgresql://user:s3cret@127.0.0.1/db?target_session_attrs=bogus",
    ],
)
def test_an_address_that_is_wrong_is_a_usage_error(address: str) -> None:
    """At once, and without a piece of the password that libpq took for something else."""
    with pytest.raises(UsageError) as caught:
        SqlLedger(address, patience=30.0).check()
    told = f"{caught.value} {caught.value.hint}"
    assert "s3cret" not in told
    assert "percent-encod" in told


def test_a_socket_without_a_file_is_no_torn_address() -> None:
    """libpq writes an abstract one with an @ in front."""
    assert postgresql.Postgresql("postgresql://u@/db?host=@batchq").url.endswith("host=@batchq")


def test_no_connection_is_left_for_this_role(url: str, roles: tuple[str, str]) -> None:
    """Its own message: the workers are too many for the server."""
    administer(url, f"ALTER ROLE {roles[1]} CONNECTION LIMIT 0")
    ledger = SqlLedger(as_user(url, roles[1]), patience=0.1)
    with pytest.raises(LedgerUnreachable, match="no connection free") as caught:
        ledger.check()
    assert "max_connections" in (caught.value.hint or "")


# -- passwords and TLS ------------------------------------------------------------------------


@pytest.fixture
def locked(url: str, proxy: PostgresProxy, roles: tuple[str, str]) -> str:
    """The address for a role that must give its password, without it."""
    administer(
        url, f"ALTER ROLE {roles[1]} PASSWORD '{SECRET}'", f"GRANT {WITH_PASSWORD} TO {roles[1]}"
    )
    return over_tcp(url, proxy.port, roles[1])


def by_variable(patch: pytest.MonkeyPatch, folder: Path, address: str) -> str:
    patch.setenv("PGPASSWORD", SECRET)
    return address


def by_file(patch: pytest.MonkeyPatch, folder: Path, address: str) -> str:
    path = folder / "pgpass"
    path.write_text(f"127.0.0.1:*:*:*:{SECRET}\n")
    path.chmod(0o600)
    patch.setenv("PGPASSFILE", str(path))
    return address


def by_service(patch: pytest.MonkeyPatch, folder: Path, address: str) -> str:
    parts = urlsplit(address)
    path = folder / "pg_service.conf"
    path.write_text(
        f"[batchq]\nhost={parts.hostname}\nport={parts.port}\ndbname={parts.path[1:]}\n"
        f"user={parts.username}\npassword={SECRET}\n"
    )
    patch.setenv("PGSERVICEFILE", str(path))
    return "postgresql://?service=batchq"


@pytest.mark.parametrize("given", [by_variable, by_file, by_service])
def test_the_password_comes_from_where_libpq_looks(
    given: Callable[[pytest.MonkeyPatch, Path, str], str],
    locked: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The environment, a password file, a service file: none of it in the address."""
    denied = SqlLedger(locked, patience=30.0)
    with pytest.raises(AccessDenied, match="no password supplied"):
        denied.check()
    ledger = SqlLedger(given(monkeypatch, tmp_path, locked), patience=60.0)
    ledger.check()
    assert SECRET not in ledger.url
    ledger.close()


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


def encrypted(url: str, proxy: PostgresProxy, mode: str, root: Path) -> str:
    address = over_tcp(url, proxy.port).replace("127.0.0.1", "localhost")
    return f"{address}?sslmode={mode}&sslrootcert={root}"


def test_verify_full_reaches_a_server_that_can_prove_its_name(
    url: str, server: str, authority: Authority
) -> None:
    """Encrypted, and every verb works."""
    with PostgresProxy(socket_of(server), authority.server("localhost")) as proxy:
        address = encrypted(url, proxy, "verify-full", authority.certificate)
        initialise(address)
        whole_story(address)
        connection = postgresql.Postgresql(address).connect()
        assert connection.pgconn.ssl_in_use
        connection.close()


def test_verify_full_refuses_who_cannot_prove_it(
    url: str, server: str, authority: Authority, tmp_path: Path
) -> None:
    """Another authority, another name, no root at all: at once, and by what is wrong."""
    stranger = Authority(tmp_path / "stranger")
    cases = [
        ("localhost", stranger.certificate, "certificate verify failed"),
        ("db.example", authority.certificate, "does not match host name"),
        ("localhost", tmp_path / "absent.crt", "root certificate file"),
    ]
    for host, root, message in cases:
        with PostgresProxy(socket_of(server), authority.server(host)) as proxy:
            ledger = SqlLedger(encrypted(url, proxy, "verify-full", root), patience=30.0)
            with pytest.raises(LedgerUnreachable, match=message) as caught:
                ledger.check()
            assert "sslrootcert" in (caught.value.hint or "")


def test_the_environment_may_require_encryption(
    url: str, proxy: PostgresProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PGSSLMODE reaches libpq: a server without TLS is refused, where before it was not."""
    address = over_tcp(url, proxy.port)
    monkeypatch.setenv("PGSSLMODE", "require")
    with pytest.raises(LedgerUnreachable, match="does not support SSL") as caught:
        SqlLedger(address, patience=30.0).check()
    assert "PGSSLMODE" in (caught.value.hint or "")
    monkeypatch.delenv("PGSSLMODE")
    with pytest.raises(LedgerNotInitialised):
        SqlLedger(address, patience=60.0).check()
