"""Malformed local files are errors that name the file, in every command that reads one: never a bug of kvctl."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from kvctl.documents import checksum
from kvctl.server import run_server
from tests.cli.conftest import run_process
from tests.mutation import mutated_bytes, mutated_document, mutated_text
from tests.support.waiting import until

ROWS = {
    "rows.ndjson": b'{"key": "a", "value": "1", "ttl": 5}\n{"key": "b", "value": "MQ==", "encoding": "base64"}\n',
    "rows.csv": b'key,value,encoding,ttl\na,1,,\n"b","x ""y""",utf-8,5s\n',
    "rows.tsv": b"key\tvalue\na\t1\nb\tx\\ty\n",
}
TRANSACTION = (
    b'{"if": [{"key": "a", "exists": true}, {"key": "b", "revision": 0}, {"key": "a", "value": "1"}],'
    b' "then": [{"put": "x", "value": "1", "ttl": "5s"}, {"delete": "a", "revision": 3}, {"purge": "b"}]}'
)
BATCH = b'{"insert": "k", "value": "1", "family": "f"}\n{"put": "hex:00ff", "value": "MQ==", "encoding": "base64"}\n'
TOPOLOGY = b"""version: 1
name: ${NAME:-t}
buckets:
  W: {history: 3, ttl: 30d, max_bytes: 10MiB, metadata: {a: b}, entries: {k: v, l: x}}
mirrors: {WM: {origin: W}}
aggregates: {WA: {origins: [{bucket: W, keys: ["a.>"], prefix: p}, {bucket: B, map: {"*.*": "x.$2.$1"}}]}}
"""
STREAM = b'{"name": "ST", "subjects": ["st.>"], "max_age": "1h", "placement": {"tags": []}, "metadata": {"a": "b"}}'
CONTEXT = b'{"url": "nats://127.0.0.1:4222", "description": "x", "creds": "", "tls_first": false}'
SECRET = b"-----BEGIN NATS USER JWT-----\neyJ0.eyJ1.abc\n------END NATS USER JWT------\nSUABC\n"
RUNS = 60
"""Commands of the default run."""


def with_checksum(data: bytes, change: Callable[[Any], Any], field: str) -> bytes:
    """A changed document whose checksum fits: whoever changes a file can compute it, too."""
    document = change(json.loads(data))
    if isinstance(document, dict):
        document.pop(field, None)
        try:
            document[field] = checksum.of_document(document)
        except (ValueError, RecursionError):
            document[field] = ""
    return json.dumps(document).encode()


class Files:
    """A folder with a valid file of each kind, and the commands that read them."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.url = url
        self.config = folder / "config"
        self.contents: dict[str, bytes] = {
            **ROWS, "t.json": TRANSACTION, "t.yaml": TRANSACTION, "b.ndjson": BATCH, "top.yaml": TOPOLOGY,
            "stream.json": STREAM, "c.creds": SECRET, "nats/context/c.json": CONTEXT,
        }  # fmt: skip
        self.run("topology", "plan", "-f", self.write("top.yaml"), "--out", str(folder / "plan"))
        self.run("dump", "B", "--to", str(folder / "dump"))
        self.run("bucket", "backup", "B", str(folder / "backup"))
        names = ["plan", "dump", "backup/manifest.json", "backup/backup.json"]
        self.contents |= {name: (folder / name).read_bytes() for name in names}
        self.kept = folder / "kept"
        shutil.copytree(folder / "backup", self.kept)

    def run(self, *line: str) -> Any:
        env = {"NATS_URL": self.url, "XDG_CONFIG_HOME": str(self.folder)}
        return run_process(*line, env=env, timeout=40)

    def write(self, name: str, data: bytes | None = None) -> str:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.contents[name] if data is None else data)
        return str(path)

    def lines(self, name: str) -> list[list[str]]:
        """The commands that read a file."""
        path = str(self.folder / name)
        found: dict[str, list[list[str]]] = {
            "t.json": [["txn", "B", "-f", path]],
            "t.yaml": [["txn", "B", "-f", path]],
            "b.ndjson": [["table", "update", "T", "-f", path]],
            "top.yaml": [["topology", verb, "-f", path] for verb in ("plan", "render", "graph")],
            "stream.json": [[*line.split(), "--config", path] for line in ("stream create ST", "consumer add S c")],
            "c.creds": [["bucket", "ls", "--creds", path], ["bucket", "ls", "--nkey", path]],
            "nats/context/c.json": [["context", "show", "c"], ["context", "ls"], ["bucket", "ls", "--context", "c"],
                ["context", "edit", "c", "--description", "y"]],
            "plan": [["topology", "apply", path, "--yes"]],
            "dump": [["load", "B2", path], ["load", "B2", path, "--dry-run"]],
        }  # fmt: skip
        if name.startswith("backup/"):
            return [["bucket", "restore", str(self.folder / "backup"), "--force", "other-subjects"]]
        return found.get(name) or [["load", "B2", path], ["load", "B2", path, "--strict"]]

    def changed(self, name: str, chance: random.Random) -> bytes:
        """Another content, often one that is still of the right form."""
        data = self.contents[name]
        if name in ("plan", "backup/manifest.json") and chance.random() < 0.7:
            field = "sha256" if name == "plan" else "checksum"
            return with_checksum(data, lambda document: mutated_document(document, chance), field)
        if name == "dump" and chance.random() < 0.7:
            lines = data.splitlines()[:-1]
            at = chance.randrange(len(lines))
            lines[at] = mutated_text(lines[at], chance).replace(b"\n", b" ")
            body = b"".join(line + b"\n" for line in lines)
            trailer = {"entries": len(lines) - 1, "sha256": sha256(body).hexdigest()}
            return (
                body
                + json.dumps(mutated_document(trailer, chance) if chance.random() < 0.2 else trailer).encode()
                + b"\n"
            )
        if name.endswith((".ndjson", ".yaml", ".csv", ".tsv", ".creds")) or chance.random() < 0.3:
            lines = data.splitlines(keepends=True)
            at = chance.randrange(len(lines))
            lines[at] = (mutated_text if name.endswith(".ndjson") else mutated_bytes)(lines[at], chance)
            return b"".join(lines)
        return mutated_text(data, chance)

    def fit(self, data: bytes) -> None:
        """Write backup.json and a manifest that names its hash."""
        self.write("backup/backup.json", data)
        manifest = json.loads(self.contents["backup/manifest.json"])
        for file in manifest["files"]:
            if file["name"] == "backup.json":
                file |= {"bytes": len(data), "sha256": sha256(data).hexdigest()}
        self.write("backup/manifest.json", with_checksum(json.dumps(manifest).encode(), lambda one: one, "checksum"))


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Iterator[Files]:
    folder = tmp_path_factory.mktemp("files")
    with run_server(name="files") as server:
        for line in ("bucket add B --history 3 --atomic --marker-ttl 1h", "put B a 1", "bucket add B2 --marker-ttl 1h",
            "table create T", "stream create S --set subjects=s.*"):  # fmt: skip
            assert run_process(*line.split(), env={"NATS_URL": server.url}).exit_code == 0
        yield Files(folder, server.url)


@pytest.mark.oracle
@pytest.mark.guarantee("commands-16", by="oracle")
def test_malformed_files_are_named(files, seed, steps):
    for number in range(steps(RUNS)):
        chance = random.Random(seed * 1_000_003 + number)
        name = chance.choice([*files.contents])
        data = files.changed(name, chance)
        if name == "backup/backup.json" and chance.random() < 0.7:
            files.fit(data)
        else:
            files.write(name, data)
        line = chance.choice(files.lines(name))
        done = files.run(*line)
        shown = f"--seed {seed}, run {number}: {name} {data[:2000]!r}\n{done.transcript()}"
        assert "bug in kvctl" not in done.err, shown
        assert "Traceback" not in done.err, shown
        assert done.exit_code in range(10), shown
        if name.startswith("backup/"):
            shutil.rmtree(files.folder / "backup")
            shutil.copytree(files.kept, files.folder / "backup")
        else:
            files.write(name)


@pytest.mark.parametrize(
    "words",
    [
        "topology plan -f",
        "topology apply --yes -f",
        "txn B -f",
        "put B k --file",
        "table update T -f",
        "stream create S --config",
        "load B",
    ],
)
def test_first_signal_ends_the_wait_for_a_pipe(start, server, tmp_path, words):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    waiting = start(*words.split(), str(fifo), env={"NATS_URL": server.url})

    def opened() -> int | None:
        with suppress(OSError):  # nobody reads it yet
            return os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
        return None

    descriptor = until(opened, what="reader of the pipe")
    try:
        time.sleep(0.2)
        waiting.send_signal(signal.SIGTERM)
        assert waiting.wait(60) == 128 + signal.SIGTERM
    finally:
        waiting.kill()
        os.close(descriptor)


@pytest.mark.parametrize("words", ["topology plan -f", "txn B -f", "put B k --file", "stream create S --config"])
def test_endless_input_is_an_error_that_names_it(server, words):
    ended = run_process(*words.split(), "/dev/zero", env={"NATS_URL": server.url})
    assert ended.exit_code == 2
    assert re.search(r"/dev/zero.* is larger than \d+ MiB", ended.err), ended.err


@pytest.mark.parametrize("how", ["pipe", "device", "large"])
@pytest.mark.parametrize("name", ["context/c.json", "context.txt"])
def test_context_file_that_may_never_end_is_not_opened(tmp_path, name, how):
    path = tmp_path / "nats" / name
    path.parent.mkdir(parents=True)
    {
        "pipe": lambda: os.mkfifo(path),
        "device": lambda: path.symlink_to("/dev/zero"),
        "large": lambda: (path.touch(), os.truncate(path, (16 << 20) + 1)),
    }[how]()
    given = ("--context", "c") if name == "context/c.json" else ()
    ended = run_process("bucket", "ls", *given, env={"XDG_CONFIG_HOME": str(tmp_path)})
    assert ended.exit_code == 2
    assert "cannot be read: It is not a regular file of at most 16 MiB" in ended.err
