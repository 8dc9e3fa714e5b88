"""Settings: every variable, its default, what it refuses; contract §10."""

from __future__ import annotations

import os

import pytest
from pydantic import SecretStr

from dtq_core.config import Settings, load_settings
from dtq_core.errors import InvalidConfig

DEFAULTS = {
    "redis_url": "redis://localhost:6379/0",
    "key_prefix": "dtq",
    "task_modules": ("dtq_examples.tasks",),
    "api_host": "0.0.0.0",
    "api_port": 8000,
    "ws_path": "/ws/events",
    "api_key": "",
    "worker_concurrency": 4,
    "worker_id": "",
    "visibility_timeout_s": 30,
    "heartbeat_interval_s": 5,
    "drain_timeout_s": 30,
    "max_queue_depth": 10_000,
    "max_scheduled": 100_000,
    "max_queues": 1000,
    "max_payload_bytes": 262_144,
    "task_timeout_ms": 30_000,
    "max_attempts": 10,
    "retry_base_delay": 1.0,
    "retry_max_delay": 60.0,
    "retry_jitter": 0.2,
    "task_retention_s": 604_800,
    "result_retention_s": 3600,
    "result_max_bytes": 8192,
    "idem_ttl_s": 86_400,
    "dlq_enabled": True,
    "dlq_maxlen": 10_000,
    "submit_wait_replicas": 0,
    "metrics_host": "0.0.0.0",
    "metrics_port": 0,
    "log_level": "INFO",
    "log_json": False,
}

GOOD = {
    "redis_url": [
        "rediss://user:pw@host:1/2",
        "redis:///0",
        "redis://:p%2Fw@[::1]:6379/0?protocol=3",
        "unix:///tmp/x.sock",
        "redis+cluster://h:1",
        "redis+sentinel://h/m/0",
    ],
    "key_prefix": ["shop", "{dtq}", "a.b-c_1"],
    "task_modules": ["shop.tasks", "shop.tasks, shop.more_2"],
    "api_host": ["127.0.0.1", "::1"],
    "api_port": ["0", "65535"],
    "ws_path": ["/", "/feed"],
    "api_key": ["k"],
    "worker_concurrency": ["1", "1000"],
    "worker_id": ["worker-1", "a.b_c"],
    "visibility_timeout_s": ["5.5", "86400"],
    "heartbeat_interval_s": ["0.5", "29.9"],
    "drain_timeout_s": ["0", "86400"],
    "max_queue_depth": ["1"],
    "max_scheduled": ["1"],
    "max_queues": ["1", "100000"],
    "max_payload_bytes": ["2"],
    "task_timeout_ms": ["1", "3600000"],
    "max_attempts": ["1", "1000"],
    "retry_base_delay": ["0", "60"],
    "retry_max_delay": ["1", "2592000"],
    "retry_jitter": ["0", "1"],
    "task_retention_s": ["1"],
    "result_retention_s": ["1"],
    "result_max_bytes": ["64"],
    "idem_ttl_s": ["1"],
    "dlq_enabled": ["false", "0", "no", "TRUE"],
    "dlq_maxlen": ["1"],
    "submit_wait_replicas": ["0", "100"],
    "metrics_host": ["127.0.0.1"],
    "metrics_port": ["0", "65535"],
    "log_level": ["debug", "Error", "CRITICAL"],
    "log_json": ["true", "1"],
}

BAD = {
    "redis_url": [
        "not-a-url-hunter2",
        "http://user:hunter2@host",
        "rediss:/x",
        "redis://a b",
        "redis://:pa/ss@host",
        "redis://:12#ss@host",
        "redis://h:0",
    ],
    "key_prefix": ["a b", "a:b", "{dtq", "dtq}", "{}", "x" * 65, "ä"],
    "task_modules": ["shop tasks", "orders.", "1shop", "shop;x", "shop,,x", "os.system('x')"],
    "api_host": [],
    "api_port": ["-1", "65536", "http", "80.5"],
    "ws_path": ["no-slash", "/a b"],
    "api_key": [],
    "worker_concurrency": ["0", "-1", "1001", "many", "2.5"],
    "worker_id": ["a b", "-a", "x" * 129, "a:b", "ä"],
    "visibility_timeout_s": ["0", "-1", "nan", "inf", "soon", "86401"],
    "heartbeat_interval_s": ["0", "-1", "nan", "inf", "soon"],
    "drain_timeout_s": ["-1", "nan", "inf", "soon"],
    "max_queue_depth": ["0", "-1", "many"],
    "max_scheduled": ["0", "-1"],
    "max_queues": ["0", "100001"],
    "max_payload_bytes": ["1", "-1", "1e9x"],
    "task_timeout_ms": ["0", "3600001", "1s"],
    "max_attempts": ["0", "-1", "1001"],
    "retry_base_delay": ["-1", "nan", "inf", "soon"],
    "retry_max_delay": ["-1", "nan", "inf", "soon"],
    "retry_jitter": ["-0.1", "1.5", "nan", "inf"],
    "task_retention_s": ["0", "-1", "week"],
    "result_retention_s": ["0", "x"],
    "result_max_bytes": ["63", "-5"],
    "idem_ttl_s": ["0", "-1"],
    "dlq_enabled": ["maybe", "2"],
    "dlq_maxlen": ["0", "-1"],
    "submit_wait_replicas": ["-1", "101"],
    "metrics_host": [],
    "metrics_port": ["-1", "65536", "http"],
    "log_level": ["LOUD", "7"],
    "log_json": ["maybe"],
}


@pytest.fixture(autouse=True)
def empty_environment(monkeypatch):
    for name in list(os.environ):
        if name.startswith("DTQ_"):
            monkeypatch.delenv(name)


def plain(value):
    return value.get_secret_value() if isinstance(value, SecretStr) else value


def variable(name):
    return f"DTQ_{name.upper()}"


def cases(table):
    return [pytest.param(name, value, id=f"{name}={value[:20]}") for name, values in table.items() for value in values]


@pytest.mark.contract(*[f"C10.{n:02}" for n in range(1, 27)])
def test_every_variable_has_its_default():
    assert {name: plain(value) for name, value in load_settings()} == DEFAULTS


def test_the_tables_of_this_test_are_complete():
    assert set(Settings.model_fields) == set(DEFAULTS) == set(GOOD) == set(BAD)


@pytest.mark.contract("C10.26")
@pytest.mark.parametrize(("name", "value"), cases(GOOD))
def test_good_values_are_taken_from_the_environment(monkeypatch, name, value):
    monkeypatch.setenv(variable(name), value)
    got, kind = plain(getattr(load_settings(), name)), type(DEFAULTS[name])
    assert isinstance(got, (kind, float) if kind is int else kind)
    if kind in (int, float):
        assert got == float(value)
    elif name in ("redis_url", "api_key", "key_prefix", "worker_id", "ws_path", "api_host"):
        assert got == value


@pytest.mark.contract("C10.27", "C13.22")
@pytest.mark.parametrize(("name", "value"), cases(BAD))
def test_a_bad_value_is_refused_by_the_name_of_its_variable_without_the_value(monkeypatch, name, value):
    monkeypatch.setenv(variable(name), value)
    with pytest.raises(InvalidConfig) as caught:
        load_settings()
    message = caught.value.message
    assert message.startswith(f"{variable(name)}: "), message
    assert "\n" not in message and "pydantic" not in message
    assert len(value) < 4 or value not in message
    assert caught.value.__cause__ is None and caught.value.__suppress_context__


@pytest.mark.contract("C10.27")
def test_all_bad_variables_are_named_at_once(monkeypatch):
    for name in ("DTQ_MAX_ATTEMPTS", "DTQ_LOG_LEVEL", "DTQ_REDIS_URL"):
        monkeypatch.setenv(name, "hunter2")
    with pytest.raises(InvalidConfig) as caught:
        load_settings()
    assert all(f"{n}: " in caught.value.message for n in ("DTQ_MAX_ATTEMPTS", "DTQ_LOG_LEVEL", "DTQ_REDIS_URL"))
    assert "hunter2" not in caught.value.message


@pytest.mark.contract("C10.28")
@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"heartbeat_interval_s": "30"}, ["DTQ_HEARTBEAT_INTERVAL_S", "DTQ_VISIBILITY_TIMEOUT_S"]),
        ({"visibility_timeout_s": "4"}, ["DTQ_HEARTBEAT_INTERVAL_S", "DTQ_VISIBILITY_TIMEOUT_S"]),
        ({"retry_base_delay": "10", "retry_max_delay": "5"}, ["DTQ_RETRY_MAX_DELAY", "DTQ_RETRY_BASE_DELAY"]),
        ({"retry_base_delay": "61"}, ["DTQ_RETRY_MAX_DELAY", "DTQ_RETRY_BASE_DELAY"]),
    ],
    ids=str,
)
def test_combinations_that_cannot_work_are_refused_and_both_are_named(monkeypatch, values, named):
    for name, value in values.items():
        monkeypatch.setenv(variable(name), value)
    with pytest.raises(InvalidConfig) as caught:
        load_settings()
    assert all(name in caught.value.message for name in named)


@pytest.mark.contract("C10.28", "C6.08", "C6.09")
@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({}, []),
        ({"task_timeout_ms": 30_001}, ["DTQ_TASK_TIMEOUT_MS", "DTQ_DRAIN_TIMEOUT_S"]),
        ({"heartbeat_interval_s": 16}, ["DTQ_VISIBILITY_TIMEOUT_S"]),
        ({"drain_timeout_s": 10}, ["DTQ_DRAIN_TIMEOUT_S"]),
    ],
    ids=str,
)
def test_combinations_that_surprise_are_warned_of(values, named):
    notes = load_settings(**values).warnings()
    assert sorted(note.split()[0] for note in notes) == sorted(named)


@pytest.mark.contract("C10.23", "C13.22")
def test_secrets_are_in_no_text_of_the_settings(monkeypatch):
    monkeypatch.setenv("DTQ_REDIS_URL", "redis://user:hunter2@host")
    monkeypatch.setenv("DTQ_API_KEY", "hunter3")
    settings = load_settings()
    assert "hunter" not in f"{settings!r} {settings} {settings.model_dump()} {settings.model_dump_json()}"
    assert settings.redis_url.get_secret_value() == "redis://user:hunter2@host"


def test_an_empty_variable_is_the_default(monkeypatch):
    for name in DEFAULTS:
        monkeypatch.setenv(variable(name), "")
    assert {name: plain(value) for name, value in load_settings()} == DEFAULTS


def test_flags_win_over_the_environment_and_none_is_no_flag(monkeypatch):
    monkeypatch.setenv("DTQ_WORKER_CONCURRENCY", "7")
    assert load_settings(worker_concurrency=3).worker_concurrency == 3
    assert load_settings(worker_concurrency=None).worker_concurrency == 7
    with pytest.raises(InvalidConfig, match=r"^DTQ_WORKER_CONCURRENCY: "):
        load_settings(worker_concurrency=0)


def test_settings_do_not_change():
    with pytest.raises(ValueError, match="frozen"):
        load_settings().log_level = "DEBUG"


def test_several_modules_are_a_comma_list(monkeypatch):
    monkeypatch.setenv("DTQ_TASK_MODULES", " shop.tasks , shop.reports")
    assert load_settings().task_modules == ("shop.tasks", "shop.reports")
