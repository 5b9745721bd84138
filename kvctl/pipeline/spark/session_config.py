"""Configuration of a session: where it runs, and its settings. [pure]"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from kvctl.errors import UsageError

LOCAL = "local[*,4]"
"""All cores of this machine, and four attempts at a task: without them one killed worker ends a job."""

_MASTER = re.compile(r"local(\[.+\]|-cluster\[.+\])?|(spark|k8s)://.*|yarn")


@dataclass(frozen=True, slots=True)
class Target:
    """Place of a session: on this machine, on the cluster of `master`, or behind the Connect server `remote`."""

    master: str | None = None
    remote: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raises UsageError for invalid values."""
        if self.master and self.remote:
            raise UsageError("`--master` and `--remote` cannot be combined")
        if self.master == "" or self.remote == "":
            raise UsageError(f"`--{'master' if self.master == '' else 'remote'}` is empty")
        if self.master and not _MASTER.fullmatch(self.master):
            raise UsageError(
                f"`--master {self.master}` is not a Spark cluster", hint="Write it like `--master spark://HOST:7077`"
            )
        if self.remote and not self.remote.startswith(("sc://", "local")):
            raise UsageError(
                f"`--remote {self.remote}` is not a Spark Connect server",
                hint="Write it like `--remote sc://HOST:15002`",
            )

    @property
    def local(self) -> bool:
        """True if driver and executors are one process on this machine."""
        return not self.remote and (self.master or "local").startswith("local")

    @property
    def loopback(self) -> bool:
        """True if all of it is on this machine, so that the driver can listen on loopback only."""
        cluster = (self.master or "").removeprefix("spark://").startswith(("127.", "localhost:", "[::1]"))
        return self.local or cluster


def parse_conf(pairs: Iterable[str]) -> dict[str, str]:
    """Parse `K=V` of every `--conf`; the last of a name counts. Raises UsageError."""
    conf = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator or not name.strip():
            raise UsageError(
                f"`--conf {pair}` is not in the form K=V", hint="Write it like `--conf spark.executor.memory=4g`"
            )
        conf[name.strip()] = value
    return conf


def settings(target: Target, *, cores: int, scratch: str, java_options: str) -> dict[str, str]:
    """Return every setting of a classic session; `target.conf` overrides ours."""
    ours = {
        **session_settings(),
        "spark.app.name": "kvctl",
        "spark.master": with_retries(target.master or LOCAL),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.warehouse.dir": f"{scratch}/warehouse",
    }
    if target.loopback:
        ours |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    if target.local:
        ours |= {
            "spark.executor.heartbeatInterval": "1s",  # rows for the progress
            "spark.local.dir": f"{scratch}/local",
            "spark.sql.shuffle.partitions": str(cores),
        }
    ours |= target.conf
    given = target.conf.get("spark.driver.extraJavaOptions", "")
    return ours | {"spark.driver.extraJavaOptions": f"{java_options} {given}".strip()}


def session_settings() -> dict[str, str]:
    """Return settings that apply to any session, a Connect server's too."""
    return {"spark.sql.session.timeZone": "UTC"}


def with_retries(master: str) -> str:
    """Return `local`, `local[N]` with the attempts at a task of `LOCAL`; any other master unchanged."""
    if master == "local":
        return "local[1,4]"
    inside = master.removeprefix("local[").removesuffix("]")
    return f"local[{inside},4]" if master == f"local[{inside}]" and "," not in inside else master
