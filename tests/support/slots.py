"""Cluster slots, computed as the specification says (CRC16/XMODEM of the hash tag, modulo 16384)."""

from __future__ import annotations

import binascii


def slot(key: str) -> int:
    """The slot of a key: of what stands in its first non-empty braces, else of the whole key."""
    start = key.find("{")
    end = key.find("}", start + 1)
    tag = key[start + 1 : end] if start >= 0 and end > start + 1 else key
    return binascii.crc_hqx(tag.encode(), 0) % 16384
