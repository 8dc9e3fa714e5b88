"""A registry of its own for each test: what it registers is forgotten when it ends."""

from __future__ import annotations

import pytest

from dtq_tasks import producer
from dtq_tasks.registry import Registry, registry


@pytest.fixture(autouse=True)
def own_registry(monkeypatch) -> Registry:
    monkeypatch.setattr(registry, "handlers", {})
    monkeypatch.setattr(registry, "startup", [])
    monkeypatch.setattr(registry, "shutdown", [])
    monkeypatch.setattr(producer, "_current", None)
    return registry
