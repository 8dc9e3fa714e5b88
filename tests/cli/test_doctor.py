"""`dtq doctor`: each finding on a real server that has the fault, and what it says of one that has none."""

from __future__ import annotations

import asyncio
import json
import re
import resource
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis
from cli.calls import Cli, clean_environment
from support.bench import W1, Bench
from support.engines import DEFAULT_KIND, KINDS, Server, private
from support.eventually import eventually
from support.keyspace import difference, dump, table
from support.processes import DTQ, Process

from dtq_cli.cli import main
from dtq_core.config import load_settings
from dtq_core.doctor import WHY, Facts, Finding, Report, Severity, examine, gather
from dtq_core.doctor.facts import should_expire
from dtq_core.doctor.rights import ARGUMENTS, used_in_scripts
from dtq_core.doctor.shell import Shell
from dtq_core.keys import Keys
from dtq_core.store import Store
from dtq_local.engine import Engine

DOCS = Path(__file__).resolve().parents[2] / "docs" / "doctor.md"
SOUND = {
    "appendonly": "yes", "save": "", "maxmemory-policy": "noeviction", "hash-max-listpack-value": "512",
    "min-replicas-to-write": "0",
}  # fmt: skip

needs_redis_cli = pytest.mark.skipif(not shutil.which("redis-cli"), reason="redis-cli is not installed")


def facts(url: str, *, grace_period_s: float | None = None, **given: Any) -> Facts:
    host_ms = {"host_ms": given.pop("host_ms")} if "host_ms" in given else {}
    settings = load_settings(redis_url=url, **given)

    async def look() -> Facts:
        store = Store.connect(settings)
        try:
            return await gather(store, settings, grace_period_s=grace_period_s, **host_ms)
        finally:
            await store.close()

    return asyncio.run(look())


def report(server: Server, **given: Any) -> Report:
    return examine(facts(given.pop("url", server.url()), **given))


def the(code: str, server: Server, **given: Any) -> Finding:
    """The one finding of this code; every part of it is there, and its command is no more than one line."""
    found = [f for f in report(server, **given).findings if f.code == code]
    assert len(found) == 1, (code, found)
    assert found[0].what and found[0].why == WHY[code] and found[0].fix and "\n" not in found[0].fix
    return found[0]


@contextmanager
def configured(server: Server, values: Mapping[str, Any]) -> Iterator[None]:
    before = {name: server.redis.config_get(name)[name] for name in values}
    try:
        for name, value in values.items():
            server.redis.config_set(name, value)
        yield
    finally:
        for name, value in before.items():
            server.redis.config_set(name, value)


@pytest.fixture
def sound(engine: Server) -> Iterator[Server]:
    """The shared engine, configured as it should be."""
    with configured(engine, SOUND):
        yield engine


@pytest.fixture
def bench(sound: Server) -> Bench:
    return Bench(sound)


# -- nothing to complain about


def test_a_sound_server_has_no_findings(any_engine: Server) -> None:
    with configured(any_engine, SOUND):
        found = report(any_engine, grace_period_s=35)
        assert (found.findings, found.not_checked) == ((), ())


def test_it_changes_nothing(bench: Bench) -> None:
    bench.dead()
    bench.running()
    before = dump(bench.redis)
    report(bench.server)
    assert not difference(before, dump(bench.redis))


# -- the server


@pytest.mark.parametrize("version, old", [("6.2.14", True), ("", True), ("7.0.15", False), ("10.1.0", False)])
def test_server_too_old(sound: Server, version: str, old: bool) -> None:
    """No such server is installed anywhere near a test, so the facts of a real one are told an older number."""
    seen = facts(sound.url())
    assert isinstance(seen.info, dict)
    info = {k: v for k, v in seen.info.items() if k != "valkey_version"} | {"redis_version": version}
    assert ("SERVER_TOO_OLD" in _codes(examine(replace(seen, info=info)))) is old


def test_scripts_that_may_not_touch_undeclared_keys(tmp_path: Path) -> None:
    """A cluster without a hash tag in the prefix; with one all is well."""
    with private(DEFAULT_KIND, tmp_path, ("--cluster-enabled", "yes", "--appendonly", "no")) as server:
        server.redis.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        eventually(lambda: server.redis.execute_command("CLUSTER INFO")["cluster_state"] == "ok")
        found = the("SCRIPT_KEYS", server)
        assert found.severity is Severity.ERROR and found.fix == "DTQ_KEY_PREFIX='{dtq}'"
        assert "SCRIPT_KEYS" not in _codes(report(server, key_prefix="{dtq}"))


def test_eviction(sound: Server) -> None:
    with configured(sound, {"maxmemory-policy": "allkeys-lru"}):
        assert the("EVICTION", sound).severity is Severity.WARNING
        with configured(sound, {"maxmemory": 500_000_000}):
            found = the("EVICTION", sound)
            assert found.severity is Severity.ERROR
            assert found.fix == f"redis-cli -u {sound.url()} CONFIG SET maxmemory-policy noeviction"


def test_persistence(sound: Server) -> None:
    with configured(sound, {"appendonly": "no"}):
        assert the("NO_PERSISTENCE", sound).severity is Severity.ERROR
        with configured(sound, {"save": "3600 1"}):
            assert the("NO_AOF", sound).severity is Severity.WARNING


def test_an_append_only_file_that_cannot_be_written(tmp_path: Path) -> None:
    """A full disk, by a limit on the size of files."""
    wrapper = tmp_path / "server"
    wrapper.write_text(f"#!/bin/sh\ntrap '' XFSZ\nexec '{KINDS[DEFAULT_KIND].binary()}' \"$@\"\n")
    wrapper.chmod(0o755)
    with Engine(tmp_path / "engine", binary=wrapper, args=("--logfile", "/dev/null")) as engine:
        server = Server(engine)
        resource.prlimit(engine.pid, resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))

        def refused() -> bool:
            try:
                server.redis.set("x", "y" * 2000)
            except redis.ResponseError as exc:
                return "MISCONF" in str(exc)
            return False

        eventually(refused)
        found = the("AOF_WRITE_FAILED", server)
        assert found.severity is Severity.ERROR
        assert found.fix.endswith(f"(df -h {tmp_path / 'engine'}), then: redis-cli -u {server.url()} BGREWRITEAOF")
        server.stop(hard=True)


def test_a_snapshot_that_failed(tmp_path: Path) -> None:
    with private(DEFAULT_KIND, tmp_path) as server:
        (tmp_path / "dump.rdb").mkdir()  # so the snapshot cannot take its place
        server.redis.bgsave()
        eventually(lambda: server.redis.info("persistence")["rdb_last_bgsave_status"] == "err")
        assert the("SNAPSHOT_FAILED", server).severity is Severity.WARNING
        server.redis.config_set("save", "3600 1")
        found = the("SNAPSHOT_FAILED", server)
        assert found.severity is Severity.ERROR and found.fix.endswith(f"redis-cli -u {server.url()} BGSAVE")
        server.stop(hard=True)


def test_replicas(tmp_path: Path) -> None:
    with private(DEFAULT_KIND, tmp_path / "a", ("--repl-diskless-sync-delay", "0")) as primary:
        for args in ((), ("--replica-read-only", "no")):
            follow = ("--replicaof", f"127.0.0.1 {primary.port}", *args)
            with private(DEFAULT_KIND, tmp_path / f"b{len(args)}", follow) as second:
                eventually(lambda: second.redis.info("replication")["master_link_status"] == "up")
                found = the("IS_REPLICA", second)
                assert f"127.0.0.1:{primary.port}" in found.fix and ("takes writes" in found.what) == bool(args)
                assert the("REPLICA_GAP", primary).severity is Severity.WARNING
                assert "REPLICA_GAP" not in _codes(report(primary, submit_wait_replicas=1))
                assert the("WAIT_REPLICAS", primary, submit_wait_replicas=2).severity is Severity.ERROR
                second.stop(hard=True)
        primary.stop(hard=True)


def test_too_few_replicas(sound: Server) -> None:
    assert the("WAIT_REPLICAS", sound, submit_wait_replicas=1).fix.endswith("DTQ_SUBMIT_WAIT_REPLICAS=0")
    with configured(sound, {"min-replicas-to-write": 2}):
        assert "2" in the("TOO_FEW_REPLICAS", sound).what


def test_the_clock(sound: Server) -> None:
    """A host whose clock is wrong; a slow answer is not taken for one."""

    def host(offset_s: float) -> Callable[[], int]:
        return lambda: round((time.time() + offset_s) * 1000)

    assert "behind" in the("CLOCK", sound, host_ms=host(90)).what
    assert "ahead of" in the("CLOCK", sound, host_ms=host(-90)).what
    slow = iter([round(time.time() * 1000) - 4000, round(time.time() * 1000) + 100])
    assert "CLOCK" not in _codes(report(sound, host_ms=lambda: next(slow)))


def test_listpack(sound: Server) -> None:
    with configured(sound, {"hash-max-listpack-value": 64}):
        found = the("LISTPACK", sound)
        line = f"redis-cli -u {sound.url()} CONFIG SET hash-max-listpack-value 512"
        assert (found.severity, found.fix) == (Severity.ADVICE, line)


# -- rights


def user(server: Server, *rules: str) -> str:
    """The address for a user with these rules alone."""
    server.redis.execute_command("ACL", "SETUSER", "shop", "reset", "on", ">secret", *rules)
    return f"redis://shop:secret@127.0.0.1:{server.port}/0"


@pytest.fixture
def acl(any_engine: Server) -> Iterator[Server]:
    with configured(any_engine, SOUND):
        yield any_engine
        any_engine.redis.execute_command("ACL", "DELUSER", "shop")


def _rules() -> list[str]:
    return ["~dtq:*", "&dtq:*", *(f"+{name.lower()}" for name in ARGUMENTS)]


def test_the_rights_that_are_asked_for_are_enough_and_named_in_the_guide(acl: Server, tmp_path: Path) -> None:
    """A worker, a producer and the audit get through a task's whole life with exactly these."""
    url = user(acl, *_rules())
    found = report(acl, url=url)
    assert found.findings == () and {n.check for n in found.not_checked} >= {"listpack"}
    line = " ".join(sorted(_rules()))
    assert line in DOCS.read_text(), f"docs/doctor.md should have the line: {line}"
    if acl.engine.version.startswith("Valkey"):
        _live_with(acl, Cli(tmp_path, clean_environment(DTQ_REDIS_URL=url, DTQ_RETRY_BASE_DELAY="0.01")), tmp_path)


def _live_with(server: Server, cli: Cli, folder: Path) -> None:
    def run(words: str) -> None:
        assert main([*words.split(), "--redis", cli.env["DTQ_REDIS_URL"]]) == 0, words

    def status(task_id: str) -> str:
        return str(server.redis.hget(f"dtq:task:{task_id}", "status"))

    worker = Process("worker", [DTQ, "worker", "run"], cli.env, folder)
    try:
        done = cli.submit("flaky_task", '{"fail_times": 1}', "--idempotency-key", "k")
        dead = cli.submit("always_fail_task", "{}", "--max-attempts", "1")
        later = cli.submit("echo_task", "{}", "--delay-seconds", "900")
        eventually(lambda: (status(done), status(dead)) == ("succeeded", "dead_lettered"), 20, worker.tail)
        for words in ("list", "dlq list", "workers", "queue stats", "queue pause default", f"retry-dlq {dead}", f"cancel {later}",
                      "purge --queue default --yes", "purge-dlq --yes", "queue resume default", "audit verify"):  # fmt: skip
            run(words)
        worker.terminate()
        assert worker.wait() == 0
        assert "NOPERM" not in worker.log() and "no permissions" not in worker.log(), worker.tail()
    finally:
        worker.kill()


@pytest.mark.parametrize(
    "name", ["xautoclaim", "hget", "publish", "xgroup|create", "evalsha", "client|setname", "eval"]
)
def test_a_command_that_is_missing(acl: Server, tmp_path: Path, name: str) -> None:
    url = user(acl, *(rule for rule in _rules() if rule != f"+{name}"))
    if name == "client|setname":  # not even a connection: the command says so
        cli = Cli(tmp_path, clean_environment(DTQ_REDIS_URL=url))
        done = cli("doctor", "--json")
        (found,) = json.loads(done.out)["findings"]
        assert (
            done.code == 1
            and found["code"] == "ACL_COMMANDS"
            and found["fix"] == ("redis-cli -u \"$DTQ_REDIS_URL\" ACL SETUSER shop '+client|setname'")
        )
        return
    wanted = f"{Shell.at(url, {}).redis_cli} ACL SETUSER shop {shlex.quote(f'+{name}')}"
    assert the("ACL_COMMANDS", acl, url=url).fix == wanted and "secret" not in wanted
    assert {"ACL_KEYS", "ACL_CHANNELS"}.isdisjoint(_codes(report(acl, url=url)))


@pytest.mark.parametrize(
    "rules, code, fix",
    [
        (["~other:*", "&dtq:*"], "ACL_KEYS", "'~dtq:*'"),
        (["%R~dtq:*", "&dtq:*"], "ACL_KEYS", "'~dtq:*'"),
        (["~dtq:stream:*", "~dtq:[a-rt-z]*", "%R~dtq:retry:*", "&dtq:*"], None, ""),
        (["~dtq:[a-qs-z]*", "%R~dtq:retry:*", "&dtq:*"], "ACL_KEYS", "'~dtq:retry:*' '~dtq:result:*'"),
        (["~dtq:*", "resetchannels"], "ACL_CHANNELS", "'&dtq:*'"),
        (["~dtq:*", "&dtq:events"], "ACL_CHANNELS", "'&dtq:nudge:*'"),
    ],
)
def test_keys_and_channels_that_are_missing(acl: Server, rules: list[str], code: str | None, fix: str) -> None:
    url = user(acl, *(rule for rule in _rules() if rule.startswith("+")), *rules)
    if code is None:
        assert not {"ACL_KEYS", "ACL_COMMANDS", "ACL_CHANNELS"} & set(_codes(report(acl, url=url)))
        return
    assert the(code, acl, url=url).fix == f"{Shell.at(url, {}).redis_cli} ACL SETUSER shop {fix}"
    assert "ACL_COMMANDS" not in _codes(report(acl, url=url))


def test_every_command_is_asked_about_with_a_whole_call(any_engine: Server) -> None:
    """With too few arguments a server may crash where it looks for the keys."""
    assert used_in_scripts() <= set(ARGUMENTS)
    rows = any_engine.redis.command()
    for name, arguments in ARGUMENTS.items():
        arity = rows[name.split("|")[0].lower()]["arity"] if "|" not in name else None
        count = 1 + len(arguments)
        assert arity is None or (count == arity if arity > 0 else count >= -arity), name


def test_a_service_that_gives_no_config_and_no_info(tmp_path: Path) -> None:
    """CONFIG does not exist there, and INFO is forbidden: what could not be checked is named with its reason."""
    with private(DEFAULT_KIND, tmp_path, ("--rename-command", "CONFIG", "")) as server:
        found = report(server, grace_period_s=60)
        assert found.findings == () and [n.check for n in found.not_checked] == ["replicas of this server", "listpack"]
        assert all("CONFIG GET is refused" in n.because for n in found.not_checked)
        found = report(server, url=user(server, "~*", "&*", "+@all", "-info"))
        assert _codes(found) == ["ACL_COMMANDS"]
        assert {n.check for n in found.not_checked} >= {"eviction", "persistence", "replica", "server version"}


# -- the work


def test_a_group_that_is_missing(bench: Bench) -> None:
    bench.submit(queue="mail")
    assert "dtq worker run --queue mail" in the("GROUP_MISSING", bench.server).fix
    bench.fetch(queues=["mail"])
    assert _codes(report(bench.server)) == ["DEAD_CONSUMER"]  # the group is there now
    bench.redis.delete(bench.keys.stream("mail", 5))
    bench.redis.xtrim(bench.keys.stream("news", 5), maxlen=0)
    bench.redis.sadd(bench.keys.queues, "news")
    bench.redis.xdel(bench.keys.stream("news", 5), bench.redis.xadd(bench.keys.stream("news", 5), {"a": "b"}))
    assert bench.redis.exists(bench.keys.stream("news", 5))
    assert _codes(report(bench.server)) == []  # a stream without an entry has nobody who waits


def test_a_worker_that_is_gone_and_holds_tasks(bench: Bench) -> None:
    bench.now_ms = int(bench.redis.time()[0]) * 1000
    bench.register(started_at=str(bench.now_ms))
    bench.running()
    assert _codes(report(bench.server)) == []
    bench.redis.delete(bench.keys.worker(W1))
    found = the("DEAD_CONSUMER", bench.server)
    assert f"heard: 1, by {W1}" in found.what and "dtq worker run --queue default" in found.fix


def test_a_key_that_should_expire(bench: Bench) -> None:
    task_id = bench.submit()
    bench.fetch()
    assert "NO_TTL" not in _codes(report(bench.server))
    bench.redis.persist(bench.keys.task(task_id))
    found = the("NO_TTL", bench.server)
    line = f"redis-cli -u {bench.server.url()} EXPIRE dtq:task:{task_id} 604800 NX"
    assert task_id in found.what and found.fix == line
    bench.now_ms = int(bench.redis.time()[0]) * 1000
    bench.submit(delay_seconds=86_400)  # the record of a task must not end before the task begins
    line = the("NO_TTL", bench.server).fix
    assert 604_800 + 86_300 < int(line.split()[-2]) <= 604_800 + 86_400


HOSTILE = (
    "$(touch hurt)",
    "`touch hurt`",
    "'; touch hurt; '",
    '"; touch hurt; "',
    "a\nb",
    "x\ndtq:queue:q:paused",
    "\\x",
    "-u",
    "é",
)


@needs_redis_cli
def test_every_fix_mends_what_it_names_and_nothing_else(bench: Bench, tmp_path: Path) -> None:
    """As many keys as there are, of each family with its own time, whatever their names hold; pauses stay for ever."""
    families = {
        "task:": 700,
        "result:": 60,
        "idempotency:q:": 90,
        "worker:": 50,
        "fetch:": 600,
        "demo:counter:": 86_400,
    }
    names = {f"dtq:{family}{n}": ttl for family, ttl in families.items() for n in (*range(5), *HOSTILE)}
    names |= {f"dtq:queue:q{n}:task_types": 604_800 for n in range(5)} | {"dtq:retry:batch": 60}
    kept = ["dtq:queue:q:paused", "dtq:queue:q1:policy", "other:task:1", "dtq:task"]
    for name in (*names, *kept):
        bench.redis.set(name, "x")
    given = {"task_retention_s": 700, "result_retention_s": 60, "idem_ttl_s": 90}
    fixes = [f.fix for f in report(bench.server, **given).findings if f.code == "NO_TTL"]
    assert len(fixes) == 8
    for fix in fixes:
        assert "\n" not in fix
        subprocess.run(["bash", "-c", fix], cwd=tmp_path, check=True, capture_output=True, timeout=20)
    assert {name: bench.redis.ttl(name) for name in names} == names
    assert {bench.redis.ttl(name) for name in kept} == {-1}
    assert "NO_TTL" not in _codes(report(bench.server)) and list(tmp_path.iterdir()) == []


@needs_redis_cli
def test_a_leader_lock_that_nobody_gives_back(bench: Bench) -> None:
    """A lock is not given a longer life: it is taken away, and then somebody leads."""
    lock = bench.keys.lock
    bench.redis.set(lock, "me", px=10_000)
    assert "LEADER_LOCK" not in _codes(report(bench.server))
    for life in ({}, {"ex": 604_800}):
        bench.redis.set(lock, "x", **life)
        found = the("LEADER_LOCK", bench.server)
        assert (
            found.severity is Severity.ERROR
            and found.fix == f"redis-cli -u {bench.server.url()} DEL dtq:lock:scheduler"
        )
        assert "NO_TTL" not in _codes(report(bench.server))
        subprocess.run(["bash", "-c", found.fix], check=True, capture_output=True, timeout=20)
        assert not bench.redis.exists(lock)


def test_names_from_the_server_are_quoted(bench: Bench, tmp_path: Path) -> None:
    """The command that is advised is run by a shell with another `dtq`, which notes what it was called with."""
    for name in HOSTILE:
        bench.redis.sadd(bench.keys.queues, name)
        bench.redis.xadd(bench.keys.stream(name, 5), {"a": "b"})
    fix = the("GROUP_MISSING", bench.server).fix
    assert "\n" not in fix
    (tmp_path / "dtq").write_text("#!/bin/sh\nprintf '%s\\0' \"$@\" >called\n")
    (tmp_path / "dtq").chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    subprocess.run(["bash", "-c", fix[fix.index("dtq worker") :]], cwd=tmp_path, env=env, check=True, timeout=20)
    called = (tmp_path / "called").read_text().split("\0")[:-1]
    assert called == ["worker", "run", *(word for name in sorted(HOSTILE) for word in ("--queue", name))]
    assert {path.name for path in tmp_path.iterdir()} == {"dtq", "called"}


@pytest.mark.parametrize(
    "url, env, redis_cli, dtq",
    [
        ("redis://h:1/2", {}, "redis-cli -u redis://h:1/2", "DTQ_REDIS_URL=redis://h:1/2 dtq"),
        ("redis://h:1/2", {"DTQ_REDIS_URL": "redis://h:1/2"}, "redis-cli -u redis://h:1/2", "dtq"),
        ("redis://:pw@h/0", {"DTQ_REDIS_URL": "redis://:pw@h/0"}, 'redis-cli -u "$DTQ_REDIS_URL"', "dtq"),
        ("redis://:pw@h/0", {"DTQ_REDIS_URL": "redis://:pw@other/0"}, 'redis-cli -u "${GIVEN_URL:?', 'DTQ_REDIS_URL="${GIVEN_URL:?'),
        ("redis://h/0?password=pw", {}, 'redis-cli -u "${GIVEN_URL:?', 'DTQ_REDIS_URL="${GIVEN_URL:?'),
        ("rediss://h/0?ssl_ca_certs=/a%20b", {}, "redis-cli -u 'rediss://h/0?ssl_ca_certs=/a%20b' --cacert '/a b'", "DTQ_REDIS_URL='"),
        ("unix:///run/r.sock?db=3", {}, "redis-cli -s /run/r.sock -n 3", "DTQ_REDIS_URL='"),
        ("unix://ann:pw@/run/r.sock", {}, 'redis-cli -s /run/r.sock -n 0 --user ann -a "${PASSWORD:?', "DTQ_REDIS_URL="),
    ],
)  # fmt: skip
def test_fixes_go_to_the_server_that_was_looked_at(url: str, env: dict[str, str], redis_cli: str, dtq: str) -> None:
    shell = Shell.at(url, env, elsewhere=True)
    assert shell.redis("PING").startswith(redis_cli) and shell.dtq("list").startswith(dtq)
    assert "pw" not in shell.redis("PING") + shell.dtq("list") + shell.removal("dtq")


def test_which_keys_should_expire_is_what_the_table_of_keys_says() -> None:
    pattern = should_expire(Keys())
    for row in table():
        name = re.sub(r"<[^>]+>", "1", row.name)
        assert bool(pattern.fullmatch(name)) is row.has_ttl, row.name


@pytest.mark.parametrize(
    "code, settings, fix",
    [
        ("TIMEOUT_ABOVE_VISIBILITY", {"task_timeout_ms": 45_500, "drain_timeout_s": 60}, "DTQ_VISIBILITY_TIMEOUT_S=46"),
        ("LEASE_MARGIN", {"heartbeat_interval_s": 20}, "DTQ_HEARTBEAT_INTERVAL_S=10"),
        ("DRAIN_BELOW_TIMEOUT", {"drain_timeout_s": 10}, "DTQ_DRAIN_TIMEOUT_S=30"),
        ("DRAIN_ABOVE_GRACE", {"grace_period_s": 30}, "terminationGracePeriodSeconds: 35, or DTQ_DRAIN_TIMEOUT_S=25"),
    ],
)
def test_settings_that_do_not_fit_together(sound: Server, code: str, settings: dict[str, Any], fix: str) -> None:
    assert _codes(report(sound, **settings)) == [code]
    assert the(code, sound, **settings).fix == fix


# -- the command


def test_the_command(sound: Server, tmp_path: Path) -> None:
    cli = Cli(tmp_path, clean_environment(DTQ_REDIS_URL=sound.url()))
    assert "nothing to complain about" in cli.ok("doctor", "--strict")
    with configured(sound, {"maxmemory-policy": "allkeys-lru"}):
        text = cli.ok("doctor")  # a warning is no error
        assert (
            all(len(line) <= 80 or line.startswith("fix ") for line in text.splitlines())
            and "CONFIG SET maxmemory-policy" in text
        )
        done = cli("doctor", "--strict", "--grace-period", "10", "--json")
    document = json.loads(done.out)
    assert (done.code, done.err, set(document)) == (1, "", {"ok", "server", "findings", "not_checked"})
    assert document["ok"] is False and [f["code"] for f in document["findings"]] == ["DRAIN_ABOVE_GRACE", "EVICTION"]
    assert all(set(f) == {"code", "severity", "what", "why", "fix"} for f in document["findings"])


def test_it_cannot_run(tmp_path: Path) -> None:
    cli = Cli(tmp_path, clean_environment())
    err = cli.refused("REDIS_UNAVAILABLE", "doctor", "--redis", "redis://:secret@127.0.0.1:1/0", status=2)
    assert "secret" not in err
    cli.refused("INVALID_CONFIG", "doctor", status=2, env={"DTQ_VISIBILITY_TIMEOUT_S": "x"})
    cli.refused("INVALID_ARGUMENT", "doctor", "--grace-period", "nan", status=2)


def test_the_guide_lists_every_finding() -> None:
    assert re.findall(r"^### `([A-Z_]+)`", DOCS.read_text(), re.MULTILINE) == sorted(WHY)


def _codes(found: Report) -> list[str]:
    return [finding.code for finding in found.findings]
