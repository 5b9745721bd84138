"""Spark's output of kilobytes, and the one line for the user; texts are excerpts from Spark 4.3."""

import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.errors import ParseException, PySparkException

from kvctl.errors import KvctlError, NoServer, UsageError
from kvctl.pipeline.spark.failure import LONGEST, explained, not_started

STACK = "\n\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:2987)" * 60
ABORTED = (
    "An error occurred while calling o56.count.\n: org.apache.spark.SparkException: Job aborted due to stage failure: "
    "Task 1 in stage 4.0 failed 4 times, most recent failure: Lost task 1.3 in stage 4.0 (TID 32) (localhost executor)"
)


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        (
            f"{ABORTED}: org.apache.spark.SparkException: Python worker exited unexpectedly (crashed){STACK}",
            KvctlError,
            "A Python worker of Spark ended unexpectedly",
        ),
        (
            "[STREAM_FAILED] Query [id = 9251fe1d, runId = 2932f1eb] terminated with exception:  SQLSTATE: XXKST\n"
            "=== Streaming Query ===\nIdentifier: [id = 9251fe1d, runId = 2932f1eb]\n",
            KvctlError,
            "A Python worker of Spark ended unexpectedly",
        ),
        (
            f"{ABORTED}{STACK}\nCaused by: java.lang.OutOfMemoryError: Java heap space{STACK}",
            KvctlError,
            "Spark ran out of memory",
        ),
        (
            f"{ABORTED}{STACK}\nCaused by: java.io.IOException: No space left on device{STACK}",
            KvctlError,
            "No space is left on the disk",
        ),
        (
            "An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.\n: "
            f"org.apache.spark.SparkException: All masters are unresponsive! Giving up.{STACK}",
            NoServer,
            "The Spark master does not respond",
        ),
        (
            "<_MultiThreadedRendezvous of RPC that terminated with:\n\tstatus = StatusCode.UNAVAILABLE\n\tdetails",
            NoServer,
            "The Spark Connect server does not respond",
        ),
        (
            '<_InactiveRpcError of RPC that terminated with:\n\tstatus = StatusCode.UNIMPLEMENTED\n\tdetails = "404"',
            NoServer,
            "The server is not a Spark Connect server",
        ),
        (
            f"{ABORTED}: ExecutorLostFailure (executor 0 exited caused by one of the running tasks){STACK}",
            KvctlError,
            "An executor of the Spark cluster was lost",
        ),
        (
            "Traceback (most recent call last):\n  File ...\nModuleNotFoundError: No module named 'kvctl'\n",
            KvctlError,
            "kvctl is not installed where Spark runs",
        ),
        (
            f'An error occurred while calling o60.parquet.\n: java.io.IOException: Cannot run program "chmod"{STACK}'
            "\nCaused by: java.io.IOException: Exec failed, error: 2",
            KvctlError,
            'Spark failed: IOException: Cannot run program "chmod"',
        ),
        (
            f"An error occurred while calling o60.load.\n: java.io.IOException: Cannot run program "
            f'"./env/bin/python": error=2, No such file or directory{STACK}',
            KvctlError,
            "Spark cannot run the Python `./env/bin/python` on this machine",
        ),
        (
            f"{ABORTED.replace('localhost executor', 'w7.example.com executor 3')}: java.io.IOException: "
            f'Cannot run program "/opt/python3": error=13, Permission denied{STACK}',
            KvctlError,
            "Spark cannot run the Python `/opt/python3` on w7.example.com",
        ),
        (
            "Traceback (most recent call last):\n  File ...\nPermissionError: [Errno 13] Permission denied: "
            "PosixPath('/data/part-1')\n",
            KvctlError,
            "A task of Spark may not open `/data/part-1`",
        ),
        (
            f"{ABORTED}{STACK}\nCaused by: java.nio.file.AccessDeniedException: /root/x{STACK}",
            KvctlError,
            "Spark failed: AccessDeniedException: /root/x",
        ),
        ("Nothing that anybody knows", KvctlError, "Spark failed: Nothing that anybody knows"),
        ("", KvctlError, "Spark failed: "),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else "",
)
def test_failure_is_named_by_its_cause(text, kind, message):
    error = explain(text)
    assert (type(error), error.message) == (kind, message)


def test_statement_refused_by_spark_is_a_short_usage_error():
    text = "\n[PARSE_SYNTAX_ERROR] Syntax error at or near 'selekt'. SQLSTATE: 42601 (line 1, pos 0)\n\n== SQL ==\n"
    error = explained(ParseException(text))
    assert isinstance(error, UsageError)
    assert error.message == "Syntax error at or near 'selekt' (line 1, pos 0)"


def test_a_long_line_is_cut():
    assert len(explain("x" * 5000).message) < LONGEST + 50


@pytest.mark.parametrize(
    "error",
    [ConnectionRefusedError(111, "Connection refused"), Py4JNetworkError("Answer from Java side is empty")],
    ids=lambda error: type(error).__name__,
)
def test_lost_jvm_is_reported_with_the_end_of_its_log(error):
    found = explained(error, lambda: "12:00:00 ERROR last words")
    assert isinstance(found, KvctlError)
    assert found.message == "Spark ended unexpectedly"
    assert found.hint == "Spark's log ended with:\n  | 12:00:00 ERROR last words"


@pytest.mark.parametrize("error", [TypeError("a bug"), FileNotFoundError(2, "No such file", "x"), UsageError("ours")])
def test_errors_not_from_spark_are_unchanged(error):
    assert explained(error) is error


def test_failed_start_shows_the_log_or_its_known_cause():
    error = RuntimeError("[JAVA_GATEWAY_EXITED] Java gateway process exited before sending its port number.")
    unknown = not_started(error, "Error: Could not find or load main class")
    assert unknown.message == "Spark did not start: Java gateway process exited before sending its port number"
    assert "Could not find or load main class" in str(unknown.hint)
    known = not_started(error, "ERROR SparkContext: Could not parse Master URL: 'x'")
    assert isinstance(known, UsageError)


def explain(text: str) -> KvctlError:
    error = explained(PySparkException(text))
    assert isinstance(error, KvctlError)
    return error
