"""Errors of a real server: each that an operator can meet has a hint."""

import re
from typing import Any

import pytest

from kvctl.errors import KvctlError
from kvctl.jetstream.api import HINTS, server_error
from kvctl.server import run_server
from tests.support.raw import RawClient

LIMITED = """
listen: "127.0.0.1:@client@"
jetstream { store_dir: "@store@", max_memory_store: 1MB, max_file_store: 1MB }
"""


def created(raw: RawClient, name: str, **config: Any) -> dict[str, Any]:
    return raw.api(f"STREAM.CREATE.{name}", {"name": name, "subjects": [f"{name}.>"], **config}).get("error") or {}


def test_provoked_errors_have_hints():
    with run_server(name="limited", config=LIMITED) as server, RawClient(server.url) as raw:
        assert created(raw, "A") == {}
        sealed = {"name": "A", "subjects": ["A.>"], "storage": "memory"}
        found = {
            "replicas": created(raw, "B", num_replicas=3),
            "storage": created(raw, "B", max_bytes=10_000_000),
            "memory": created(raw, "B", max_bytes=10_000_000, storage="memory"),
            "overlap": created(raw, "B", subjects=["A.x"]),
            "name": created(raw, "A", subjects=["other"]),
            "change": raw.api("STREAM.UPDATE.A", sealed).get("error") or {},
        }
    codes = {what: error["err_code"] for what, error in found.items()}
    assert codes == {
        "replicas": 10074,
        "storage": 10047,
        "memory": 10028,
        "overlap": 10065,
        "name": 10058,
        "change": 10052,
    }
    for error in found.values():
        raised = server_error(error)
        assert raised.hint == HINTS[error["err_code"]]
        assert str(error["err_code"]) in raised.message


@pytest.mark.parametrize("code", [10005, 10023, 10026, 10027, 10028, 10047, 10052, 10058, 10065, 10074, 10118])
def test_codes_that_an_operator_can_meet_have_a_hint(code):
    raised = server_error({"code": 400, "err_code": code, "description": "text"})
    assert isinstance(raised, KvctlError)
    assert raised.hint
    assert not re.search(r"\.$", raised.hint)
