"""Tables of real commands at the usual widths of terminals, and in a pipe: no row is longer than a line."""

import pytest

LONG = "users.550e8400-e29b-41d4-a716-446655440000.sessions.650e8400-e29b-41d4-a716-446655440000"
KEYS = ("a", LONG, f"{LONG}.{'k' * 110}", "b")
COMMANDS = (("keys",), ("get", "a", LONG), ("history",), ("watch", "--until-current"))


@pytest.mark.parametrize("columns", [80, 100, 140])
def test_long_keys_stay_on_one_line(keyed, snapshot, columns):
    for key in KEYS:
        keyed.put(key, f"value of {key}".encode())
    for name, *rest in COMMANDS:
        result = keyed(name, "B", *rest, tty=True, env={"COLUMNS": str(columns)})
        assert result.exit_code == 0, result.err
        assert max(map(len, result.out.splitlines())) <= columns
        assert [line for line in result.out.splitlines() if "users.5" in line and "…" in line] or columns == 140
    assert result == snapshot  # without ages, whose width changes


def test_pipes_have_complete_keys(keyed):
    for key in KEYS:
        keyed.put(key, f"value of {key}".encode())
    for output in ("table", "tsv"):
        result = keyed("get", "B", "a", KEYS[2], "-o", output, env={"COLUMNS": "80"})
        assert f"value of {KEYS[2]}" in result.out
        assert "…" not in result.out
    assert keyed("keys", "B").out.splitlines() == list(KEYS)
