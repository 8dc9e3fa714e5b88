"""dtq_core.spelling: a misspelt setting is told with the one that was meant, and nothing else is."""

from __future__ import annotations

import pytest

from dtq_api.access import KeySettings
from dtq_core.config import Settings
from dtq_core.spelling import OTHERS, misspelt

FIELDS = tuple(Settings.model_fields)


@pytest.mark.parametrize(
    "name, meant",
    [
        ("DTQ_MAX_ATEMPTS", "DTQ_MAX_ATTEMPTS"),
        ("DTQ_REDIS_UR", "DTQ_REDIS_URL"),
        ("DTQ_CONCURRENCY", "DTQ_WORKER_CONCURRENCY"),
        ("DTQ_VISIBILITY_TIMEOUT", "DTQ_VISIBILITY_TIMEOUT_S"),
        ("DTQ_log_levle", "DTQ_LOG_LEVEL"),
        ("DTQ_API_READKEY", "DTQ_API_READ_KEY"),
    ],
)
def test_a_misspelt_setting(name: str, meant: str) -> None:
    (note,) = misspelt({name: "secret-value"}, FIELDS)
    assert name in note and note.endswith(f"did you mean {meant}?") and "secret-value" not in note


@pytest.mark.parametrize(
    "name, value",
    [
        *((f"DTQ_{name.upper()}", "1") for name in FIELDS),
        ("dtq_max_atempts", "1"),
        ("DTQ_SHOP_CURRENCY", "EUR"),
        ("DTQ_TEST_FOLDER", "/tmp"),
        ("DTQ_API_SERVICE_HOST", "10.0.0.1"),
        ("DTQ_METRICS_SERVICE_PORT", "9000"),
        ("DTQ_METRICS_SERVICE_PORT_HTTP", "9000"),
        ("DTQ_REDIS_PORT", "tcp://10.0.0.1:6379"),
        ("DTQ_API_PORT_8000_TCP_PORT", "8000"),
        ("PATH", "/bin"),
    ],
)
def test_what_is_none(name: str, value: str) -> None:
    assert misspelt({name: value}, FIELDS) == []


def test_the_settings_of_the_api_are_known() -> None:
    assert set(OTHERS) == set(KeySettings.model_fields)
