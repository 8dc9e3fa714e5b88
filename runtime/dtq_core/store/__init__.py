"""The only package that imports redis: scripts, the calls that run them, the connections, and the spelling of records."""

from dtq_core.store.connection import Lane, Store, SyncStore
from dtq_core.store.transitions import Call, Delivery, FetchReply, Transitions

__all__ = ["Call", "Delivery", "FetchReply", "Lane", "Store", "SyncStore", "Transitions"]
