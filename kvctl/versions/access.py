"""What the operations of a repository work on: its store, its cached objects, and one session's staged writes."""

from __future__ import annotations

from kvctl.versions.branch.staging import StagingWriter
from kvctl.versions.model import check_versioned_key
from kvctl.versions.store.protocol import Store
from kvctl.versions.tree.objects import Objects


class RepositoryAccess:
    """One session's access to a repository; operations are functions of it, which `Repository` collects."""

    def __init__(self, store: Store, *, author: str = "") -> None:
        self.store = store
        self.author = author
        """Author of commits."""
        self.objects = Objects(store)
        self.writer = StagingWriter(store)

    def check(self, key: str, value: bytes | None) -> None:
        """Check a key and a value. Raises UsageError for one that no branch can hold."""
        check_versioned_key(key)
        self.writer.check(value)
