"""`kvctl touch`: a new ttl."""

import json


def test_touch_prints_the_new_revision_and_renews_the_ttl(keyed):
    assert keyed("create", "B", "k", "v", "--ttl", "1h").exit_code == 0
    assert keyed("touch", "B", "k", "--ttl", "2h").out == "2\n"
    entry = json.loads(keyed("get", "B", "k", "-o", "json").out)
    assert (entry["value"], entry["ttl"]) == ("v", 7200)
    assert json.loads(keyed("touch", "B", "k", "--ttl", "3h", "-o", "json").out)["revision"] == 3


def test_touch_refuses_what_it_cannot_renew(keyed, snapshot):
    assert keyed("touch", "B", "none", "--ttl", "1h") == snapshot
    assert keyed("touch", "B", "k") == snapshot
    assert keyed("touch", "config@main", "k", "--ttl", "1h").exit_code == 2
    assert keyed("touch", "B", "k", "--ttl", "1h", "--read-only").exit_code == 1
    assert keyed.last_revision() == 0
