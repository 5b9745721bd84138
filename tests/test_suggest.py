"""Suggestions are close, or there are none."""

import pytest

from kvctl.suggest import did_you_mean, nearest


@pytest.mark.parametrize(
    ("word", "known", "expected"),
    [
        ("ORDRS", ["ORDERS", "STOCK"], "ORDERS"),
        ("orders", ["ORDERS", "ORDERS_NYC"], "ORDERS"),
        ("pord", ["dev", "prod"], "prod"),
        ("ptu", ["get", "put"], "put"),
        ("kei", ["value", "key"], "key"),
        ("ord", ["orders", "stock"], "orders"),
        ("ord", ["orders", "ordnance"], None),
        ("or", ["orders"], None),
        ("set", ["get"], None),
        ("crate", ["compact"], None),
        ("describe", ["restore"], None),
        ("push", ["show"], None),
        ("status", ["stream"], None),
        ("ttl", ["tls-ca", "user"], None),
        ("x", [], None),
    ],
)
def test_nearest_name_is_close_or_absent(word, known, expected):
    assert nearest(word, known) == expected


def test_hint_ends_with_the_remedy_or_falls_back():
    assert did_you_mean("ordrs", ["orders"], "List them") == "Did you mean `orders`? List them"
    assert did_you_mean("ordrs", ["orders"], otherwise="Use `stock`") == "Did you mean `orders`?"
    assert did_you_mean("x", ["orders"], "List them") == "List them"
    assert did_you_mean("x", ["orders"], "List them", otherwise="Use `stock`") == "Use `stock`"
