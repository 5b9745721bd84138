"""`kvctl edit`, with editors that are scripts."""

import os
import re
import stat
import sys
from pathlib import Path

import pytest


@pytest.fixture
def editor(tmp_path):
    return Editor(tmp_path)


class Editor:
    """Makes editors out of shell scripts; `$1` is the file. `seen` is where they may leave what they saw."""

    def __init__(self, directory: Path) -> None:
        self.program = directory / "editor"
        self.seen = directory / "seen"

    def __call__(self, script: str) -> dict[str, str]:
        self.program.write_text(f"#!/bin/sh\n{script}\n")
        self.program.chmod(0o700)
        return {"EDITOR": str(self.program), "SEEN": str(self.seen), "TMPDIR": str(self.program.parent)}


def test_the_edited_text_is_written_back(keyed, editor, snapshot):
    keyed.put("app.yaml", b"port: 80\n")
    change = editor("sed -i s/80/8080/ $1")
    assert keyed("edit", "B", "app.yaml", env=change) == snapshot
    assert keyed.value("app.yaml") == b"port: 8080\n"
    assert keyed("edit", "B", "app.yaml", env=editor("echo more >> $1"), tty=True) == snapshot


def test_unchanged_text_writes_nothing(keyed, editor, snapshot):
    first = keyed.put("k", b"text")
    assert keyed("edit", "B", "k", env=editor("true")).out == f"{first}\n"
    assert keyed("edit", "B", "k", env=editor("true"), tty=True) == snapshot
    assert keyed.last_revision() == first


def test_a_newline_that_the_editor_adds_is_taken_off(keyed, editor):
    first = keyed.put("k", b"one line")
    assert keyed("edit", "B", "k", env=editor("echo >> $1")).out == f"{first}\n"
    keyed("edit", "B", "k", env=editor("echo changed > $1"))
    assert keyed.value("k") == b"changed"


def test_the_file_is_private_named_after_the_key_and_removed(keyed, editor, tmp_path):
    keyed.put("app/config.json", b"{}")
    script = 'stat -c "%a %n" "$1" "$(dirname "$1")" > $SEEN; echo "$1~" > "$1~"; echo "[]" > "$1"'
    assert keyed("edit", "B", "app/config.json", env=editor(script)).exit_code == 0
    (mode, file), (folder_mode, folder) = [line.split(maxsplit=1) for line in editor.seen.read_text().splitlines()]
    assert (mode, folder_mode, Path(file).name) == ("600", "700", "app_config.json")
    assert not Path(folder).exists()


def test_visual_comes_before_editor_and_may_have_arguments(keyed, editor):
    keyed.put("k", b"x")
    env = editor('echo "$1" > $SEEN; echo visual > $2')
    assert keyed("edit", "B", "k", env={**env, "VISUAL": f"{env['EDITOR']} --wait", "EDITOR": "false"}).exit_code == 0
    assert (editor.seen.read_text(), keyed.value("k")) == ("--wait\n", b"visual")


def test_a_conflict_keeps_the_text_and_says_where(keyed, editor, snapshot):
    keyed.put("k", b"before")
    script = f'python -m kvctl put {keyed.name} k "by another" >/dev/null; echo mine > $1'
    env = {**editor(script), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    result = keyed("edit", "B", "k", env=env)
    assert result.masked({r"/\S*/kvctl-edit-\w+/": "DIRECTORY/"}) == snapshot
    (kept,) = set(re.findall(r"/[^\s`]*/kvctl-edit-[^\s`]*", result.err))
    assert Path(kept).read_text() == "mine\n"
    assert stat.S_IMODE(Path(kept).stat().st_mode) == 0o600
    assert keyed.value("k") == b"by another"


def test_an_editor_that_fails_writes_nothing(keyed, editor, snapshot):
    keyed.put("k", b"x")
    assert keyed("edit", "B", "k", env=editor("exit 3")).masked({r"`/\S*/editor`": "`EDITOR`"}) == snapshot
    assert list(editor.program.parent.glob("kvctl-edit-*")) == []
    changed = keyed("edit", "B", "k", env=editor("echo changed > $1; exit 3"))
    assert (changed.exit_code, "Your text is in" in changed.err, keyed.value("k")) == (1, True, b"x")


def test_what_cannot_be_edited(keyed, editor, snapshot):
    keyed.put("bin", b"\xff\x00")
    assert keyed("edit", "B", "bin", env=editor("true")) == snapshot
    assert keyed("edit", "B", "nope", env=editor("true")) == snapshot
    assert keyed("edit", "B", "bin", env={"EDITOR": "no-such-editor"}) == snapshot
    assert keyed("edit", "B", "bin", env={"EDITOR": "vi 'x"}) == snapshot
    assert keyed("edit", "B", "*", env=editor("true")).exit_code == 2


def test_an_edit_keeps_what_is_left_of_the_ttl(keyed, editor):
    keyed.put("k", b"x", {"Nats-TTL": "1h"})
    assert keyed("edit", "B", "k", env=editor("echo y > $1")).exit_code == 0
    assert '"ttl": 3' in keyed("get", "B", "k", "-o", "ndjson").out


def test_what_is_left_of_a_ttl_is_shown_on_a_terminal(keyed):
    keyed.put("k", b"x", {"Nats-TTL": "1h"})
    keyed.put("stays", b"x")
    assert re.search(r"^TTL +1h, expires in 59m$", keyed("get", "B", "k", "-o", "table").out, re.MULTILINE)
    listed = keyed("get", "B", "k", "stays", "-o", "table").out.splitlines()
    assert listed[0].split() == ["revision", "created", "operation", "expires", "in", "key", "value"]
    assert listed[2].split()[-3:] == ["59m", "k", "x"]
    assert keyed("keys", "B", "k", "-o", "table").out.splitlines()[2].split()[-2:] == ["59m", "k"]
    assert "expires" not in keyed("keys", "B", "-o", "json").out
    assert "expires" not in keyed("history", "B", "stays", "-o", "table").out
