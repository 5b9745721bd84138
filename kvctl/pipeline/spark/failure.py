"""Convert Spark's failures to one KvctlError: of kilobytes of Java, the line that matters."""

import re
from collections.abc import Callable

from kvctl.errors import KvctlError, NoServer, UsageError
from kvctl.phrases import indented
from kvctl.pipeline.error_transport import recall

LONGEST = 400
"""Maximum characters of Spark's message shown."""
_WRAPPERS = r"[\w.]+\.(?:SparkException|ExecutionException|InvocationTargetException|RuntimeException)\b"
"""Java exceptions that only wrap another one."""


def explained(error: Exception, log_tail: Callable[[], str] = str) -> Exception:
    """Return the KvctlError for what Spark raised; `log_tail` is the end of its log.

    An error raised by a worker is returned as it was; any other Spark error is named by its cause. An exception that is
    not Spark's is returned unchanged.
    """
    if not _of_spark(error):
        return error
    text = text_of(error)
    return recall(text) or _known(text) or _lost(error, log_tail) or _refused(error, text) or _unknown(text)


def not_started(error: Exception, log_tail: str) -> KvctlError:
    """Return the error if Spark did not start; `log_tail` is the end of its output."""
    text = text_of(error)
    known = recall(text) or _known(f"{text}\n{log_tail}")
    return known or KvctlError(f"Spark did not start: {_cause(text)}", hint=_end_of_log(log_tail))


def planning_error(text: str) -> KvctlError:
    """Return the error of a plan that Spark describes instead of raising it."""
    return recall(text) or _known(text) or UsageError(_sentence(text))


def text_of(error: BaseException) -> str:
    """Return the text of an error; for Spark's this asks the JVM, which may have ended."""
    try:
        return str(error)
    except Exception:
        return type(error).__name__


_NOT_COME = r"Python worker failed to connect back"
_GONE = (
    r"Python worker exited unexpectedly|python worker.*crashed|"
    r"terminated with exception: (?:Broken pipe|Connection reset(?: by peer)?)?\s*SQLSTATE"
)
"""The last one is for the process that plans a stream's batches: Java stops reading from it, without a reason."""
_KNOWN: tuple[tuple[str, type[KvctlError], str, str | None], ...] = (
    (
        _NOT_COME,
        KvctlError,
        "A Python worker of Spark did not start in time",
        "The machine may be overloaded; run it again",
    ),
    (
        _GONE,
        KvctlError,
        "A Python worker of Spark ended unexpectedly",
        "The system may be out of memory; run fewer tasks in parallel: `--master 'local[1]'`",
    ),
    (
        r"java\.lang\.OutOfMemoryError",
        KvctlError,
        "Spark ran out of memory",
        "Increase it with `--conf spark.driver.memory=4g`, on a cluster `--conf spark.executor.memory=4g`",
    ),
    (r"No space left on device", KvctlError, "No space is left on the disk", None),
    (
        r"All masters are unresponsive|Failed to connect to master",
        NoServer,
        "The Spark master does not respond",
        "Check that it runs Spark 4.3 and that the URL matches the one on its web page",
    ),
    (
        r"Could not parse Master URL|Invalid master URL",
        UsageError,
        "Invalid Spark master URL",
        "Write it like `--master 'local[4]'` or `--master spark://HOST:7077`",
    ),
    (
        r"(?s)(?:\((?P<where>\S+) executor .*?)?Cannot run program \"(?P<what>[^\"]*python[^\"]*)\"",
        KvctlError,
        "Spark cannot run the Python `{what}` on {where}",
        "Name one that the workers and this machine have, with PYSPARK_PYTHON or `--conf spark.pyspark.python=PATH`",
    ),
    (
        r"PermissionError: \[Errno 13\] [^:]*: (?:PosixPath\()?'(?P<what>[^']*)'",
        KvctlError,
        "A task of Spark may not open `{what}`",
        "Executors often run as another user: give it access to the folder",
    ),
    (
        r"\[(?:DATA_SOURCE_NOT_FOUND|DATA_SOURCE_TABLE_SCHEMA_MISMATCH)\].*nats-kv",
        KvctlError,
        "Spark cannot find the data source `nats-kv`",
        "Install kvctl where Spark runs: `pip install 'kvctl[spark]'`",
    ),
    (
        r"ModuleNotFoundError: No module named '(?:kvctl|pyspark_kvctl)",
        KvctlError,
        "kvctl is not installed where Spark runs",
        "Install it there with `pip install 'kvctl[spark]'`, and set PYSPARK_PYTHON to that Python before Spark starts",
    ),
    (r"ExecutorLostFailure|Lost executor", KvctlError, "An executor of the Spark cluster was lost", None),
    (
        r"StatusCode\.UNAVAILABLE|failed to connect to all addresses",
        NoServer,
        "The Spark Connect server does not respond",
        None,
    ),
    (
        r"StatusCode\.UNAUTHENTICATED",
        NoServer,
        "The Spark Connect server refused the token",
        "It is part of the URL: `--remote 'sc://HOST:PORT/;token=...'`, or set SPARK_CONNECT_AUTHENTICATE_TOKEN",
    ),
    (r"StatusCode\.UNIMPLEMENTED", NoServer, "The server is not a Spark Connect server", None),
    (
        r"PYTHON_VERSION_MISMATCH",
        KvctlError,
        "Spark's workers run another version of Python",
        "Set PYSPARK_PYTHON to the same version on every machine",
    ),
)
"""Pattern in Spark's output, most specific first -> error, message with the pattern's groups, hint."""


def _known(text: str) -> KvctlError | None:
    for pattern, kind, message, hint in _KNOWN:
        if found := re.search(pattern, text):
            return kind(message.format_map(found.groupdict("this machine")), hint=hint)
    return None


def _of_spark(error: Exception) -> bool:
    """Return whether pyspark raised it, or its connections to a JVM or a Connect server."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    connection = isinstance(error, OSError) and error.filename is None
    return isinstance(error, PySparkException | Py4JError) or connection or type(error).__module__.startswith("grpc")


def _lost(error: Exception, log_tail: Callable[[], str]) -> KvctlError | None:
    """Return the error if the JVM has ended, without further information."""
    from py4j.protocol import Py4JError, Py4JJavaError

    if isinstance(error, OSError) or (isinstance(error, Py4JError) and not isinstance(error, Py4JJavaError)):
        return KvctlError("Spark ended unexpectedly", hint=_end_of_log(log_tail()))
    return None


def _refused(error: Exception, text: str) -> KvctlError | None:
    """Return the error for an invalid request: a wrong path, column, or statement."""
    from pyspark.errors import AnalysisException, IllegalArgumentException, ParseException

    if isinstance(error, AnalysisException | ParseException | IllegalArgumentException):
        return UsageError(_sentence(text))
    return None


def _unknown(text: str) -> KvctlError:
    return KvctlError(f"Spark failed: {_cause(text)}", hint="Run with `-v` for Spark's full output")


def _sentence(text: str) -> str:
    """Return the first line, without the parts for programs: `[CONDITION] Words SQLSTATE: 42K03`."""
    first = next((line for line in text.splitlines() if line.strip()), "")
    first = re.sub(r"\[[A-Z][A-Z_.0-9]+\]\s*", "", first.strip())
    return _cut(re.sub(r"\.?\s*SQLSTATE: \w+[.;:]*", "", first).rstrip(".;: "))


def _cause(text: str) -> str:
    """Return the line with the reason: the last of a Python traceback, else the innermost Java exception."""
    python = re.findall(
        r"^(?!\s)(?:[\w.]+\.)?(\w*(?:Error|Exception|Interrupt)\b: .*)$", _tracebacks(text), re.MULTILINE
    )
    if python:
        return _cut(python[-1])
    java = re.findall(r"^(?:Caused by)?\s*: ?((?:[a-z_]\w*\.)+[\w$]+(?:: .*)?)$", text, re.MULTILINE)
    causes = [line for line in java if not re.match(_WRAPPERS, line)] or java[-1:]
    return _sentence(re.sub(r"^(?:[a-z_]\w*\.)+", "", causes[0]) if causes else text)


def _tracebacks(text: str) -> str:
    """Return the Python part of a text that may contain Java's stacks, too."""
    _, found, rest = text.rpartition("Traceback (most recent call last):")
    return rest.partition("\n\tat ")[0] if found else ""


def _end_of_log(tail: str) -> str:
    ended = indented("Spark's log ended with:", (f"| {line}" for line in tail.splitlines()))
    return ended if tail else "Run with `-v` for Spark's full output"


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
