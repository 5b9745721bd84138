"""Terraform files: literal values as data, everything else as expressions, errors located."""

from typing import Any

import pytest

from kvctl.documents import hcl
from kvctl.documents.hcl import Expression
from kvctl.errors import UsageError


def value(text: str) -> Any:
    return hcl.parse(f"v = {text}\nnext = 1".encode(), "f.tf")["v"]


def test_blocks_become_lists_by_type_and_labels():
    text = b"""
    resource "a" "x" {
      name = "x"   # of the stream
      source { name = "one" }
      source {
        name = "two" // last
      }
    }
    resource a y {}
    /* a comment
       of lines } */
    variable "v" { default = "d" }
    """
    assert hcl.parse(text, "f.tf") == {
        "resource": {"a": {"x": [{"name": "x", "source": [{"name": "one"}, {"name": "two"}]}], "y": [{}]}},
        "variable": {"v": [{"default": "d"}]},
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5", 5), ("-5", -5), ("1.5", 1.5), ("1e3", 1000.0), ("true", True), ("null", None), ('""', ""),
        (r'"a \"b\" \\ \n \u00e9 \U0001F600"', 'a "b" \\ \n é \U0001f600'),
        ('"$${x} %%{y} $x $$y $"', "${x} %{y} $x $$y $"),
        ("[]", []), ('["a", 1, [true]]', ["a", 1, [True]]), ('[\n "a", # first\n "b",\n]', ["a", "b"]),
        ("{}", {}), ('{ a = 1, "b c" : 2 }', {"a": 1, "b c": 2}), ('{\n a = 1\n\n b = { c = "d" }\n}',
                                                                   {"a": 1, "b": {"c": "d"}}),
    ],
)  # fmt: skip
def test_literal_values_are_data(text, expected):
    found = value(text)
    assert (found, type(found)) == (expected, type(expected))


@pytest.mark.parametrize(
    "text",
    [
        "var.ttl", "60 * 60", "(1)", 'upper("a")', '"${var.x}"', '"a ${upper("}")} b"', '"%{ if x }"', "[var.x]",
        "{ a = var.x }", "{ (var.k) = 1 }", 'x ? "a" : "b"', "[for x in y : x]", "[1] == [2]", "!true", "-x",
        '"a" == "b"',         "merge(\n  { a = 1 },\n  var.b,\n)", "<<EOF\nany } text\nEOF", "<<-EOF\n  EOF",
    ],
)  # fmt: skip
def test_other_values_are_expressions_and_hide_nothing_after_them(text):
    found = hcl.parse(f"v = {text}\nnext = 1".encode(), "f.tf")
    assert isinstance(found["v"], Expression)
    assert found["v"] == " ".join(text.split())
    assert found["next"] == 1


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a =", "1:4: A value is missing"),
        ("a = }", "1:5: A value is missing"),
        ('a = "x', "1:5: A quoted text does not end"),
        ('a = "x\n"', "1:5: A quoted text does not end"),
        ('a = "${"x}', "1:8: A quoted text does not end"),
        (r'a = "\q"', "1:6: An escape that Terraform does not allow"),
        (r'a = "\ud800"', "1:6: An escape that Terraform does not allow"),
        ("a = 1\nb = 2\n  a = 3", "3:3: `a` appears twice"),
        ("}", "1:1: Expected an argument or a block, not `}`"),
        ('"a" = 1', "1:1: Expected an argument or a block, not `a`"),
        ("b {", "1:4: Expected an argument or a block, not the end of the file"),
        ("b\n{}", "1:2: Expected a block after `b`, not the end of the line"),
        ("b {}\nb = 1", "2:1: `b` appears twice"),
        ("b = 1\nb {}", "2:1: `b` is used in two ways"),
        ("b = 1\nb x {}", "2:1: `b` is used in two ways"),
        ("a = [1", "1:5: A bracket is not closed"),
        ("a = f(", "1:5: A bracket is not closed"),
        ("a = 1 /* text", "1:7: A comment does not end"),
        ("a = <<EOF\ntext", "1:7: A heredoc does not end"),
        ("a = " + '"${' * 80, "This is nested too deeply"),
        ("b {" * 80, "This is nested too deeply"),
        ("a = " + "[" * 80, "This is nested too deeply"),
        (b"\xff", "f.tf:1:1: This is not UTF-8"),
    ],
)
def test_errors_name_line_and_column(text, problem):
    with pytest.raises(UsageError) as caught:
        hcl.parse(text if isinstance(text, bytes) else text.encode(), "f.tf")
    assert problem in caught.value.message
    assert caught.value.message.startswith("f.tf:")


def test_texts_of_json_syntax_are_templates():
    found = hcl.from_json({"a": ["${x}", "$${x}", "%{y}", "$x"], "b": 5})
    assert found == {"a": ["${x}", "${x}", "%{y}", "$x"], "b": 5}
    assert [isinstance(item, Expression) for item in found["a"]] == [True, False, True, False]
