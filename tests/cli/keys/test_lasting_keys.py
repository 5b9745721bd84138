"""Keys that never expire, `Nats-TTL: never`: every command that carries a value keeps it."""

import json
import time
from typing import Any

import pytest

from tests.cli.keyed import Keyed

BUCKET_TTL_S = 3


@pytest.fixture
def fading(server, raw, unique) -> Keyed:
    """A bucket whose ttl ends every key but those that never expire."""
    name = unique("FADING")
    settings = {"max_msgs_per_subject": 5, "allow_msg_ttl": True, "subject_delete_marker_ttl": 10**9}
    raw.create_bucket(name, max_age=BUCKET_TTL_S * 10**9, duplicate_window=10**9, **settings)
    return Keyed(name, server.url, raw)


@pytest.mark.guarantee("writing-17")
def test_never_is_kept_by_everything_that_carries_a_value(fading, tmp_path, unique):
    def done(*args: str, **settings: Any) -> None:
        result = fading(*args, **settings)
        assert result.exit_code == 0, result.err

    copied, dump = unique("COPIED"), tmp_path / "dump"
    fading.put("brief")
    for key in ("own", "moved", "edited", "reverted", "deleted"):
        fading.put(key, b"value", {"Nats-TTL": "Never"})  # the server takes it in any case of letters
    fading.put("reverted", b"later")
    done("create", "B", "created", "value", "--ttl", "never")
    fading.put("touched")
    done("touch", "B", "touched", "--ttl", "never")
    done("copy", "B", "own", "copy")
    done("rename", "B", "moved", "renamed")
    done("edit", "B", "edited", env={"EDITOR": "sh -c 'printf edited > $0'"})
    done("delete", "B", "deleted")  # the value must not come back when the marker would expire
    done("revert", "B", "reverted", "5")
    done("bucket", "copy", "B", copied, "--data", "latest")
    done("dump", "B", "--to", str(dump))
    done("load", "B", str(dump))
    done("load", "B", "-", stdin=b'{"key": "row", "value": "value", "ttl": "never"}\n')
    time.sleep(BUCKET_TTL_S + 1)
    kept = {"own", "renamed", "edited", "reverted", "created", "touched", "copy"}
    for name, keys in ((fading.name, {*kept, "row"}), (copied, kept)):
        rows = json.loads(fading("get", name, ">", "-o", "json").out)
        assert {row["key"]: row.get("ttl") for row in rows} == dict.fromkeys(keys, "never")
    for output in ("table", "yaml"):
        assert "never" in fading("get", "B", "own", "-o", output).out


def test_put_over_a_value_that_never_expires_warns_that_it_reappears(fading):
    assert fading("put", "B", "k", "brief").err == ""
    assert fading("create", "B", "lasting", "old", "--ttl", "never").exit_code == 0
    written = fading("put", "B", "lasting", "new")
    assert (written.exit_code, written.err) == (
        0,
        f"warning: When `lasting` expires, its value at revision 2 reappears, because bucket `{fading.name}` "
        "keeps history\n",
    )
    assert fading("put", "B", "k", "brief again").err == ""
    time.sleep(BUCKET_TTL_S + 1)
    assert fading("get", "B", "lasting").stdout == b"old"
