"""Variables of the environment in documents: replaced as text, missing ones reported, values hidden in errors."""

from typing import Any

import pytest

from kvctl.documents import parser
from kvctl.documents.parser import Document
from kvctl.documents.reader import read
from kvctl.documents.record import FLAG, INTEGER, PAIRS, SIZE, TEXT, Field, Record
from kvctl.documents.variables import ALLOWED, SubstitutedText, escaped, expanded, mark, texts
from kvctl.errors import UsageError

ENVIRONMENT = {"REGION": "lon", "COUNT": "3", "ON": "true", "EMPTY": "", "SECRET": "hunter2", "CODE": "1e3"}
TYPES = {"text": TEXT, "count": INTEGER, "on": FLAG, "size": SIZE, "pairs": PAIRS}
RECORD = Record("a file", {name: Field(kind, "x") for name, kind in TYPES.items()})


def values(text: str, source: str = "t.yaml") -> Any:
    return expanded(parser.parse(text.encode(), source), ENVIRONMENT).data


def fields(text: str, source: str = "t.yaml") -> dict[str, Any]:
    document = expanded(parser.parse(text.encode(), source), ENVIRONMENT)
    return read(document, lambda reader: RECORD.read(reader, ()))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("${REGION}", "lon"), ("eu-${REGION}-1", "eu-lon-1"), ("${REGION}${COUNT}", "lon3"), ("${NONE:-par}", "par"),
        ("${EMPTY:-par}", "par"), ("${EMPTY}x", "x"), ("${NONE:-}", ""), ("${NONE:-a:-b c}", "a:-b c"),
        ("${REGION:-par}", "lon"), ("$1.$2", "$1.$2"), ("$KV.a.>=b.>", "$KV.a.>=b.>"), ("$$", "$$"), ("$x", "$x"),
        ("$${REGION}", "${REGION}"), ("a$${b}${REGION}", "a${b}lon"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("form", ["a: '{}'", 'a: "{}"', '{{"a": "{}"}}', "b: &x '{}'\na: *x"])
def test_variable_is_replaced_in_a_text(text, value, form):
    assert values(form.format(text))["a"] == value


def test_variable_is_replaced_in_keys_lists_and_merged_mappings():
    text = "base: &b {tag: '${REGION}'}\n${REGION}_1: [x, '${COUNT}']\nother:\n  <<: *b\n"
    assert values(text) == {"base": {"tag": "lon"}, "lon_1": ["x", "3"], "other": {"tag": "lon"}}


def test_value_of_a_variable_cannot_add_structure():
    environment = {"EVIL": "a\nhistory: 64\n#: {[&*"}
    document = expanded(parser.parse(b"name: ${EVIL}", "t.yaml"), environment)
    assert document.data == {"name": environment["EVIL"]}


@pytest.mark.parametrize("quoted", ["{}", "'{}'"])
def test_field_decides_what_a_variable_means(quoted):
    text = "".join(
        f"{name}: {quoted.format(value)}\n"
        for name, value in {"text": "${CODE}", "count": "${COUNT}", "on": "${ON}", "size": "${COUNT}MiB"}.items()
    )
    assert fields(text) == {"text": "1e3", "count": 3, "on": True, "size": 3 << 20}
    assert fields('{"count": "${COUNT}"}', "t.json") == {"count": 3}


def test_missing_variables_are_reported_together_with_other_errors():
    text = "text: ok\ncount: ${COUNTER}\nsize: a lot\npairs:\n  a: ${NONE} and ${OTHER}\n  b: ${a-b}\ncolour: x\n"
    with pytest.raises(UsageError) as caught:
        fields(text)
    assert caught.value.message.splitlines() == [
        "t.yaml has 6 errors:",
        "  t.yaml:2:1: count: Variable `COUNTER` is not set. Set it, or write a default: `${COUNTER:-DEFAULT}`",
        "  t.yaml:3:1: size: `a lot` is not a size. Write it like `512`, `64KiB` or `10MB`",
        "  t.yaml:5:3: pairs.a: Variable `NONE` is not set. Set it, or write a default: `${NONE:-DEFAULT}`",
        "  t.yaml:5:3: pairs.a: Variable `OTHER` is not set. Set it, or write a default: `${OTHER:-DEFAULT}`",
        "  t.yaml:6:3: pairs.b: `${a-b}` is not a variable. Write `${NAME}` or `${NAME:-DEFAULT}`; `$${` is a literal "
        "`${`",
        "  t.yaml:7:1: colour: `colour` is not a field of a file. Use one of `count`, `on`, `pairs`, `size`, `text`",
    ]


def test_missing_variable_of_json_has_its_place():
    with pytest.raises(UsageError, match=r"t\.json:2:2: text: Variable `NONE` is not set"):
        fields('{\n "text": "${NONE}"}', "t.json")


def test_keys_that_a_variable_makes_equal_are_an_error():
    with pytest.raises(
        UsageError, match=r"t\.yaml:3:3: pairs\..*: `\$\{REGION\}` appears twice, because of a variable"
    ):
        fields("pairs:\n  lon: a\n  ${REGION}: b\n")


@pytest.mark.parametrize(
    "text", ["size: ${SECRET}", "size: a-${SECRET}-b", "count: ${SECRET}", "${SECRET}: 1", "pairs: {'${SECRET}': [1]}"]
)
def test_errors_hide_values_of_variables(text):
    with pytest.raises(UsageError) as caught:
        fields(text)
    shown = f"{caught.value.message} {caught.value.hint}"
    assert "hunter2" not in shown
    assert "count" in shown or "${SECRET}" in shown


def test_short_value_of_a_variable_is_hidden_as_a_whole():
    with pytest.raises(UsageError, match=r"`\$\{REGION\}` is not a size"):
        fields("size: ${REGION}")


def test_marks_survive_plain_data():
    document = expanded(parser.parse(b"a: {b: ['${COUNT}', x]}", "t.yaml"), ENVIRONMENT)
    plain: Any = {"a": {"b": ["3", "x"]}}
    found = [(path, text.source) for path, text in texts(document.data)]
    assert found == [(("a", "b", 0), "${COUNT}")]
    for path, source in found:
        mark(plain, path, source)
    assert isinstance(plain["a"]["b"][0], SubstitutedText)
    assert plain == document.data


def test_escaped_data_means_the_same_in_a_file():
    data: Any = {"${a}": ["$1 ${b:-c} $${d}", 5, None], "e": {"f": "${"}}
    assert expanded(Document(escaped(data), "t.yaml"), ENVIRONMENT).data == data


def test_document_without_variables_stays_as_it_is():
    document = parser.parse(b"a: $1\n", "t.yaml")
    assert expanded(document, {}) is document


def test_a_variable_in_a_default_is_refused():
    with pytest.raises(UsageError) as caught:
        fields("text: ${REGION_OF_NOBODY:-${SITE:-lon}}\n")
    assert "`${REGION_OF_NOBODY:-${SITE:-lon}` is not a variable" in caught.value.message


@pytest.mark.parametrize(
    ("allowed", "name", "problem"),
    [
        (None, "NATS_PASSWORD", "is for connections, and its value is a secret"),
        ("NATS_PASSWORD", "NATS_PASSWORD", "is for connections, and its value is a secret"),
        ("", "COUNT", "is not among those of KVCTL_FILE_VARIABLES"),
        ("OTHER", "COUNT", "is not among those of KVCTL_FILE_VARIABLES"),
        ("OTHER,COUNT", "COUNT", None),
        ("OTHER COUNT", "COUNT", None),
    ],
)
def test_secrets_and_variables_that_are_not_allowed_are_refused(allowed, name, problem):
    environment = {"NATS_PASSWORD": "hidden1", "COUNT": "hidden2"} | ({} if allowed is None else {ALLOWED: allowed})
    document = expanded(parser.parse(f"text: a ${{{name}:-default}}".encode(), "t.yaml"), environment)
    assert bool(document.problems) == bool(problem)
    if problem:
        assert problem in document.problems[0][1]
        assert "hidden" not in str(document.data) + str(document.problems)
