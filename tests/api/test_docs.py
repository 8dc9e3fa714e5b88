"""The pages about the service tell all of it: a curl line for each call, each metric with its labels, alerts on metrics that exist.

That the commands run as they are written is tested with those of every other page.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from api.test_metrics import METRICS
from api.test_openapi import operations

from dtq_core.events import EVENT_TYPES, TERMINAL_EVENTS

DOCS = Path(__file__).resolve().parents[2] / "docs"
HTTP, EVENTS, OBSERVABILITY = ((DOCS / name).read_text() for name in ("http-api.md", "events.md", "observability.md"))


def test_every_call_has_a_curl_line(api):
    commands = re.sub(r"\\\n *", "", HTTP + EVENTS + OBSERVABILITY)
    lines = [line for line in commands.splitlines() if "curl " in line]
    for method, path, _ in operations(api):
        pattern = re.sub(r"\\\{\w+\\\}", r"[$\\w]+", re.escape(path)) + r"(?=[\s?'\"]|$)"
        found = [line for line in lines if re.search(pattern, line)]
        posts = [line for line in found if "-X POST" in line or " -d '" in line]
        assert posts if method == "post" else set(found) - set(posts), f"no curl line for {method} {path}"


@pytest.mark.contract("C11.19", "C7.03", "C7.12")
def test_numbers_are_called_exact_or_approximate(api):
    rows = [line for line in HTTP.splitlines() if re.match(r"\| `\w+`.*(exact|approximate)", line)]
    told = set(re.findall(r"`(\w+)`", " ".join(rows)))
    assert told >= set(api.get("/queues/a").json()) - {"queue"}
    assert "approximate" in (DOCS / "backpressure.md").read_text()


@pytest.mark.contract("C7.06", *[f"C9.{n:02}" for n in range(1, 22)])
def test_the_table_of_metrics_is_the_contract_s():
    rows = re.findall(r"^\| `(dtq_\w+)` \| (\w+) \| ([a-z_, ]*?) *\|", OBSERVABILITY, re.MULTILINE)
    assert {name: (kind, set(filter(None, labels.split(", ")))) for name, kind, labels in rows} == METRICS


def test_alerts_ask_for_metrics_and_labels_that_exist_and_say_what_to_do():
    (group,) = yaml.safe_load((DOCS / "alerts.yaml").read_text())["groups"]
    told = dict(re.findall(r"^\| `(Dtq\w+)` \|[^|]+\|([^|]+)\|", OBSERVABILITY, re.MULTILINE))
    assert [rule["alert"] for rule in group["rules"]] == list(told) and all(text.strip() for text in told.values())
    for rule in group["rules"]:
        expr = rule["expr"]
        names = [re.sub(r"_(bucket|sum|count)$", "", name) for name in re.findall(r"\bdtq_\w+", expr)]
        assert set(names) <= set(METRICS) and (names or "up{" in expr), expr
        assert expr.count("(") == expr.count(")") and rule["annotations"]["summary"]
        labels = set().union(*(METRICS[name][1] for name in names)) | {"le"}
        by = {label.strip() for part in re.findall(r"by \(([^)]*)\)", expr) for label in part.split(",")}
        used = set(re.findall(r"(\w+)(?:=~|!=|=)\"", expr)) if names else set()
        shown = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"])) if names else set()
        assert by <= labels and used <= labels and shown <= by, expr


@pytest.mark.contract("C8.01")
def test_every_event_is_explained():
    table = EVENTS[EVENTS.index("| type | when |") :].split("\n\n")[0]
    assert set(re.findall(r"`([A-Z_]+)`", table)) == set(EVENT_TYPES)
    (row,) = [line for line in table.splitlines() if "TASK_SUCCEEDED" in line]
    assert set(re.findall(r"`([A-Z_]+)`", row)) == TERMINAL_EVENTS
