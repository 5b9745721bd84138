"""Every guarantee of the help topics has tests, and every test names guarantees that exist."""

import re
from collections import Counter
from functools import cache

from tests.support import guarantees
from tests.support.guarantees import EXAMPLES_ONLY, KINDS, PAGE, TOPICS

stated = cache(guarantees.guarantees)
evidence = cache(guarantees.evidence)


def test_every_guarantee_has_an_id_of_its_own():
    repeated = [id for id, number in Counter(one.id for one in stated()).items() if number > 1]
    assert len(stated()) > 150
    assert repeated == []


def test_every_guarantee_has_a_test():
    assert [one.id for one in stated() if not evidence()[one.id]] == []


def test_every_mark_names_a_guarantee_and_a_kind():
    known = {one.id for one in stated()}
    assert {id: tests for id, tests in evidence().items() if tests and id not in known} == {}
    assert {test.kind for tests in evidence().values() for test in tests} <= KINDS.keys()


def test_guarantees_that_only_examples_show_are_in_their_section():
    general = [one for one in stated() if one.topic == "guarantees"]
    strong = {id for id, tests in evidence().items() if any(test.kind != "example" for test in tests)}
    assert [one.id for one in general if one.section != EXAMPLES_ONLY and one.id not in strong] == []
    assert [one.id for one in general if one.section == EXAMPLES_ONLY and one.id in strong] == []


def test_every_paragraph_of_a_guarantee_ends_with_its_id():
    text = (TOPICS / "guarantees.md").read_text(encoding="utf-8")
    promises = text[text.index("\n## Writing") : text.index("\n## Not guaranteed")].split("\n## ")[1:]
    blocks = [block for part in promises if not part.startswith(EXAMPLES_ONLY) for block in part.split("\n\n")[1:]]
    items = promises[-1].split("\n- ")[1:]
    assert promises[-1].startswith(EXAMPLES_ONLY)
    assert [block for block in blocks if not re.search(r"\[[a-z]+-\d+\]\s*$", block)] == []
    assert [item for item in items if not re.search(r"\[[a-z]+-\d+\]\s*(\n\n.*)?$", item)] == []


def test_page_of_guarantees_is_current():
    """If not: `python -m tests.support.guarantees`."""
    assert PAGE.read_text(encoding="utf-8") == guarantees.page()
