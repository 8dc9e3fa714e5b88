"""Environment variables that were probably meant to be settings: a misspelt one would be ignored without a word. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping

from dtq_core.text import clean

PREFIX = "DTQ_"
OTHERS = ("api_key_file", "api_read_key", "api_submit_key")
"""Settings that are not in config.Settings, because only the API reads them."""
_CLOSE = 0.75
_OF_KUBERNETES = re.compile(r"DTQ_\w+_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP)(_\w+)?)")
"""Kubernetes tells each pod about each service: one named dtq-api becomes DTQ_API_PORT=tcp://… and more like it."""


def misspelt(environment: Mapping[str, str], fields: Iterable[str]) -> list[str]:
    """A sentence for each DTQ_ variable that is no setting but nearly is one. `fields` are the names of Settings.

    A variable that resembles none is left alone: it may belong to somebody else. Values are never repeated.
    """
    known = sorted({name.upper() for name in (*fields, *OTHERS)})
    notes = []
    for name, value in sorted(environment.items()):
        bare = name.removeprefix(PREFIX)
        if bare == name or bare.upper() in known or _OF_KUBERNETES.fullmatch(name) or value.startswith("tcp://"):
            continue
        near = difflib.get_close_matches(bare.upper(), known, 1, _CLOSE)
        if near:
            notes.append(f"{clean(name, 100)} is no setting and is ignored; did you mean {PREFIX}{near[0]}?")
    return notes
