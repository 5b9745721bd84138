"""Widths, truncation and wrapping of texts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvctl.render.widths import cell_width, cut, cut_middle, wrapped


class TestCells:
    def test_width(self):
        assert [cell_width(text) for text in ("", "abc", "漢", "e\u0301", "😀", "\u200d")] == [0, 3, 2, 1, 2, 0]

    def test_cut(self):
        assert cut("abcdef", 6) == "abcdef"
        assert cut("abcdef", 4) == "abc…"
        assert cut("漢字漢字", 4) == "漢…"
        assert cut("e\u0301" * 4, 3) == "e\u0301e\u0301…"

    def test_cut_in_the_middle(self):
        assert cut_middle("abcdef", 6) == "abcdef"
        assert cut_middle("abcdefgh", 6) == "ab…fgh"
        assert cut_middle("漢字漢字漢字", 7) == "漢…漢字"
        assert cut_middle("users.550e8400-e29b-41d4-a716-446655440000", 23) == "users.550e8…46655440000"

    @given(st.text(), st.integers(1, 40))
    def test_cut_ones_fit(self, text, width):
        assert cell_width(cut(text, width)) <= width
        assert cell_width(cut_middle(text, width)) <= width


@pytest.mark.parametrize(
    ("text", "width", "indent", "lines"),
    [
        ("hint: use it", 20, 6, ["hint: use it"]),
        ("hint: use `kvctl bucket ls` to see", 20, 6, ["hint: use `kvctl", "      bucket ls` to", "      see"]),
        ("hint: use `kvctl ls` to see", 20, 6, ["hint: use `kvctl ls`", "      to see"]),
        ("hint: or use `kvctl ls` to see", 20, 6, ["hint: or use", "      `kvctl ls` to", "      see"]),
        ("error: " + "x" * 30, 20, 7, ["error:", "       " + "x" * 30]),
        ("a  b\n  - one two three\n\nend ", 10, 0, ["a  b", "  - one", "  two", "  three", "", "end "]),
        ("error: no\n  - one two", 8, 7, ["error:", "       no", "  - one", "  two"]),
        ("run:\n\n    export NAME=value", 10, 0, ["run:", "", "    export NAME=value"]),
        ("漢字 漢字 漢字", 9, 0, ["漢字 漢字", "漢字"]),
        ("\x1b[31merror:\x1b[0m ab cd", 9, 7, ["\x1b[31merror:\x1b[0m ab", "       cd"]),
    ],
)
def test_messages_are_wrapped_at_words(text, width, indent, lines):
    assert wrapped(text, width, indent).split("\n") == lines


@given(st.text("ab `漢\n"), st.integers(20, 60))
def test_wrapped_messages_keep_their_words_and_fit(text, width):
    lines = wrapped(text, width, 6)
    assert lines.split() == text.split()
    wide = [line for line in lines.split("\n") if cell_width(line.rstrip(" ")) > width and len(line.split()) > 1]
    assert not [line for line in wide if not line.startswith("    ")]
    assert wrapped(text.replace(" ", ""), width, 6) == text.replace(" ", "")
