"""Error tree of kvctl; each class has an exit code and a `kind`, its name for programs.

    KvctlError                  1  failed; message, and optionally a hint for the next step
    ├── UsageError              2  bad argument, name, or document; nothing was sent
    ├── NotFoundError           3
    │   ├── BucketNotFound
    │   ├── StreamNotFound
    │   ├── ConsumerNotFound
    │   ├── KeyNotFound
    │   ├── RevisionNotFound
    │   ├── HistoryLost            the state of keys at a moment that the bucket no longer has
    │   ├── ContextNotFound
    │   ├── TableNotFound
    │   └── RepositoryNotFound
    ├── ConflictError           4
    │   ├── BucketExists           with another configuration
    │   ├── KeyExists
    │   ├── LeaseHeld              by another owner
    │   ├── WrongRevision
    │   ├── ConditionsFailed       of a transaction, naming all that do not hold
    │   ├── TableExists            with another configuration
    │   ├── RepositoryExists       with another configuration
    │   └── ConditionalUpdateError names every key of a table whose condition failed
    │       ├── BadKeyVersion          one exists, at another version or at all
    │       └── NoSuchKey              one is absent, and all others that fail too
    ├── UnreachableError        5
    │   ├── Away                   may answer later
    │   │   ├── Unanswered             what was sent may have been stored
    │   │   │   ├── ConnectionLost         while a request was in flight
    │   │   │   └── RequestTimeout         a read or an administrative request without an answer
    │   │   ├── NoServer
    │   │   ├── NoResponders
    │   │   │   └── StreamOffline      no server that holds the stream answers; `streams` names them
    │   │   └── JetStreamDisabled
    │   ├── AuthenticationRefused
    │   └── PermissionDenied       names the subject that is missing
    ├── OutcomeUnknown          6  a write was sent and could not be resolved
    ├── PartlyDone              7
    ├── WaitExpired             9
    ├── LeaseLost               9  its command was ended
    ├── RefusedError            1  by the user at the prompt, by a read-only handle, by a hazard
    │   ├── CancelledByUser
    │   ├── ReadOnly
    │   ├── HazardRefused
    │   └── TableSealed
    ├── StreamReplaced          1  deleted, recreated or emptied during a reading
    └── ServerError             1  any other answer of the server, with its code
        └── BucketSealed           a write to a bucket that is permanently read-only

Messages name things in backticks and end without a full stop; hints name the next command.
"""

from collections.abc import Sequence
from typing import Any


class KvctlError(Exception):
    """Failed. `hint` is a sentence with the next step."""

    exit_code = 1
    kind = "failed"
    """Stable name of the class for programs, listed in the topic `exit-codes`; subclasses elsewhere inherit it."""

    def __init_subclass__(cls, *, kind: str | None = None) -> None:
        super().__init_subclass__()
        if kind is not None:
            cls.kind = kind

    def __init__(self, message: str, *, hint: str | None = None, **facts: Any) -> None:
        """`facts` are attributes that the class declares."""
        super().__init__(message)
        self.message = message
        self.hint = hint
        for name, value in facts.items():
            if not hasattr(type(self), name):
                raise TypeError(f"{type(self).__name__} has no attribute `{name}`")
            setattr(self, name, value)


class UsageError(KvctlError, kind="usage"):
    """An argument, name or document is wrong; nothing was sent."""

    exit_code = 2


class NotFoundError(KvctlError, kind="not-found"):
    """The named thing does not exist."""

    exit_code = 3
    confirmed = True
    """False if a replica reported it, and neither the stream's leader nor a mirror's origin could be asked."""

    def __init__(self, message: str, *, confirmed: bool = True, **facts: Any) -> None:
        super().__init__(message if confirmed else f"{message} (not confirmed by the leader of the stream)", **facts)
        self.confirmed = confirmed


class BucketNotFound(NotFoundError, kind="bucket-not-found"):
    """No bucket, aggregate or mirror has this name."""


class StreamNotFound(NotFoundError, kind="stream-not-found"):
    """No stream has this name (server code 10059)."""


class ConsumerNotFound(NotFoundError, kind="consumer-not-found"):
    """No consumer has this name (server code 10014)."""


class KeyNotFound(NotFoundError, kind="key-not-found"):
    """The key has no value: never written, deleted, purged or expired."""


class RevisionNotFound(NotFoundError, kind="revision-not-found"):
    """The bucket does not have this revision of the key."""


class HistoryLost(NotFoundError, kind="history-lost"):
    """The bucket no longer has its state at the requested moment; `keys` are those known to be affected."""

    keys: Sequence[str] = ()


class ContextNotFound(NotFoundError, kind="context-not-found"):
    """No context file has this name."""


class TableNotFound(NotFoundError, kind="table-not-found"):
    """No table has this name."""


class RepositoryNotFound(NotFoundError, kind="repository-not-found"):
    """No repository has this name."""


class ConflictError(KvctlError, kind="conflict"):
    """Somebody else's state prevents the change."""

    exit_code = 4


class BucketExists(ConflictError, kind="bucket-exists"):
    """The bucket exists with another configuration."""


class KeyExists(ConflictError, kind="key-exists"):
    """The key already has a value; `revision` is its revision, if known."""

    revision: int | None = None


class LeaseHeld(ConflictError, kind="lease-held"):
    """Another owner holds the lease; `owner` names it."""

    owner: str = ""


class WrongRevision(ConflictError, kind="wrong-revision"):
    """The key's last revision is not the expected one; `found` is its last revision (0: none), if known."""

    found: int | None = None


class TableExists(ConflictError, kind="table-exists"):
    """The table exists with another configuration."""


class RepositoryExists(ConflictError, kind="repository-exists"):
    """The repository exists with another configuration."""


class ConditionalUpdateError(ConflictError, kind="conditional-update"):
    """Conditions of a table's update failed, and nothing was written (PDP-39); `failed` names them.

    Each is (family, key, version found): the text of a version, or None for no entry.
    """

    failed: tuple[tuple[str | None, bytes, str | None], ...] = ()


class BadKeyVersion(ConditionalUpdateError, kind="bad-key-version"):
    """An entry exists at another version than expected, or was expected not to exist."""


class NoSuchKey(ConditionalUpdateError, kind="no-such-key"):
    """A version was given for an entry that does not exist."""


class ConditionsFailed(ConflictError, kind="conditions-failed"):
    """Conditions of a transaction do not hold; `failures` are all of them, with the entries found."""

    failures: tuple[Any, ...] = ()


class UnreachableError(KvctlError, kind="unreachable"):
    """The server, JetStream or the permission to use it is missing."""

    exit_code = 5


class Away(UnreachableError):
    """The server, its connection or the leader is not there at the moment; the same request may be answered later."""


class Unanswered(Away):
    """A request was sent and not answered: what it writes may have been stored."""


class NoServer(Away, kind="no-server"):
    """No connection could be made, or it was lost for good."""


class ConnectionLost(Unanswered, kind="connection-lost"):
    """The connection broke while a request was in flight; it may or may not have arrived."""


class RequestTimeout(Unanswered, kind="request-timeout"):
    """A request got no answer in time."""


class NoResponders(Away, kind="no-responders"):
    """Nobody listens on the subject (status 503 without a description)."""


class StreamOffline(NoResponders, kind="stream-offline"):
    """No server that holds a stream answers (server code 10118, or missing in a listing); `streams` names them."""

    streams: Sequence[str] = ()


class JetStreamDisabled(Away, kind="jetstream-disabled"):
    """The server or the account has no JetStream, or JetStream has no leader at the moment."""


class AuthenticationRefused(UnreachableError, kind="authentication-refused"):
    """The server refused the credentials."""


class PermissionDenied(UnreachableError, kind="permission-denied"):
    """The account's permissions do not allow `subject`."""

    subject: str | None = None


class OutcomeUnknown(KvctlError, kind="outcome-unknown"):
    """A write was sent and not acknowledged; the hint says how to find out its outcome."""

    exit_code = 6


class PartlyDone(KvctlError, kind="partly-done"):
    """Some of several steps were done; running the command again completes them."""

    exit_code = 7


class WaitExpired(KvctlError, kind="wait-expired"):
    """A wait ended without its condition."""

    exit_code = 9
    late: tuple[str, ...] = ()
    """For a replica that is not filled: the state of each origin whose entries have not all arrived."""


class LeaseLost(KvctlError, kind="lease-lost"):
    """A lease was taken, deleted, or could not be renewed in time."""

    exit_code = 9


class RefusedError(KvctlError, kind="refused"):
    """Refused on purpose."""


class CancelledByUser(RefusedError, kind="cancelled"):
    """The user declined at the prompt."""


class ReadOnly(RefusedError, kind="read-only"):
    """A write to something read-only."""

    aggregate: dict[str, Any] | None = None
    """Configuration of the stream of an aggregate that takes no writes."""
    key: str | None = None
    """Key that was to be written there."""


class HazardRefused(RefusedError, kind="hazard-refused"):
    """A change would lose or hide data; `--force` with its `name` overrides it."""

    def __init__(self, name: str, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint or f"Use `--force {name}` to proceed anyway")
        self.name = name


class TableSealed(RefusedError, kind="table-sealed"):
    """A write to a sealed table, which is permanently read-only."""


class StreamReplaced(KvctlError, kind="stream-replaced"):
    """The stream was deleted, recreated or emptied during a reading."""


class ServerError(KvctlError, kind="server-error"):
    """The server refused; `code` is the HTTP-like status, `err_code` JetStream's own number (0: none)."""

    code: int = 0
    err_code: int = 0


class BucketSealed(ServerError, kind="bucket-sealed"):
    """A write to a sealed bucket, which is permanently read-only."""
