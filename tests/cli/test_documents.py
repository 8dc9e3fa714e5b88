"""The promise of --json: what dtq_cli.documents (and so docs/cli.md) lists is what commands print, no key more or less."""

from __future__ import annotations

from dataclasses import fields

import pytest
from cli.calls import Cli

from dtq_cli import reference
from dtq_cli.documents import DOCUMENTS
from dtq_cli.tree import build_parser
from dtq_core.audit import AuditReport
from dtq_core.client import PurgeReport
from dtq_core.doctor import Finding, Report
from dtq_core.events import Event
from dtq_core.inspector import DeadLetter, QueueStats, WorkerInfo
from dtq_local.bench import BenchReport
from dtq_local.demo import DemoReport
from dtq_local.state import UpRecord


def names(kind: type) -> set[str]:
    return {field.name for field in fields(kind)}


@pytest.mark.parametrize(
    "words, keys",
    [
        ("purge", names(PurgeReport) - {"looked_at_ms"}),
        ("purge-dlq", names(PurgeReport) - {"looked_at_ms"}),
        ("queue stats", names(QueueStats)),
        ("events", names(Event)),
        ("up", names(UpRecord)),
        ("status", {"running", *names(UpRecord)}),
        ("audit verify", {"ok", *names(AuditReport)}),
        ("doctor", {"ok", "server", *names(Report)}),
        ("demo", {"remove", *names(DemoReport)}),
        ("bench", names(BenchReport)),
    ],
)
def test_documents(words: str, keys: set[str]) -> None:
    assert set(DOCUMENTS[words].keys) == keys


@pytest.mark.parametrize(
    "words, keys",
    [("workers", names(WorkerInfo)), ("doctor", names(Finding)), ("dlq list", names(DeadLetter) - {"raw"})],
)
def test_items(words: str, keys: set[str]) -> None:
    assert set(DOCUMENTS[words].item_keys or {}) == keys


def test_printed_documents(cli: Cli) -> None:
    first = cli.json("submit", "--type", "demo")
    task_id = first["task_id"]
    calls = {
        "get": ["get", task_id],
        "list": ["list"],
        "cancel": ["cancel", task_id],
        "dlq list": ["dlq", "list"],
        "purge": ["purge", "--queue", "default", "--yes"],
        "purge-dlq": ["purge-dlq", "--dry-run"],
        "queue pause": ["queue", "pause", "default"],
        "queue resume": ["queue", "resume", "default"],
        "queue stats": ["queue", "stats", "default"],
        "workers": ["workers"],
        "audit verify": ["audit", "verify"],
        "completion": ["completion", "bash"],
        "new": ["new", "shop"],
        "down": ["down"],
    }
    printed = {"submit": first, **{words: cli.json(*argv) for words, argv in calls.items()}}
    for words, document in printed.items():
        assert set(document) == set(DOCUMENTS[words].keys), words
    assert set(printed["list"]["tasks"][0]) == set(DOCUMENTS["list"].item_keys or {})


def test_every_promise_is_of_a_command_and_none_is_missing() -> None:
    commands = dict(reference.leaves(build_parser()))
    assert set(DOCUMENTS) <= set(commands)
    processes = {words for words, parser in commands.items() if parser.get_default("command").startswith("processes:")}
    assert {words for words in commands if words not in DOCUMENTS} <= processes
