"""Addresses: what is read from URLs, with any password, and that no password is ever shown."""

import string
from dataclasses import replace
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvctl.contexts import Context
from kvctl.errors import UsageError
from kvctl.urls import Address, addresses, redact

MARKS = string.ascii_letters + string.digits + string.punctuation
FORMS = ["{}", "nats://a:1,{}", "{},nats://b", "{},b:2", "u:x@a,{}", "{}x/y"]
secret = st.text(st.sampled_from(MARKS), min_size=1, max_size=12).map(lambda text: f"Q7{text}7Q")
"""A password that stands nowhere else by chance."""
host = st.sampled_from(["h", "127.0.0.1", "a.b.c", "[::1]"])
port = st.sampled_from(["", ":1", ":4222", ":65535"])
scheme = st.sampled_from(["", "nats://", "tls://", "ws://", "wss://"])


@given(scheme, st.text(min_size=1), st.text(), host, port)
def test_userinfo_that_is_percent_encoded_comes_back(scheme, user, password, host, port):
    userinfo = f"{quote(user, safe='', errors='replace')}:{quote(password, safe='', errors='replace')}"
    (found,) = addresses(f"{scheme}{userinfo}@{host}{port}")
    written = [text.encode(errors="replace").decode() for text in (user, password)]
    assert [found.user, found.password] == written
    assert found.url == f"{scheme or 'nats://'}{host}{port}"
    assert found.place == (host.strip("[]"), int(port[1:] or {"ws://": 80, "wss://": 443}.get(scheme, 4222)))


@given(st.text(st.sampled_from(MARKS.replace("%", "").replace(",", "")), max_size=12))
@example("12/34")
@example("top#secret")
@example("a?b@c:d")
def test_a_raw_password_is_everything_up_to_the_last_at_sign(password):
    (found,) = addresses(f"nats://u:{password}@h:1")
    assert (found.user, found.password, found.url) == ("u", password, "nats://h:1")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("h", [("nats://h", None, None)]),
        ("nats://a, b:1,,tls://c", [("nats://a", None, None), ("nats://b:1", None, None), ("tls://c", None, None)]),
        ("nats://u:a,b@h,g:2", [("nats://h", "u", "a,b"), ("nats://g:2", None, None)]),
        ("nats://u:,@h", [("nats://h", "u", ",")]),
        ("u:p@h,v:q@g", [("nats://h", "u", "p"), ("nats://g", "v", "q")]),
        ("nats://h,nats://t0ken@g", [("nats://h", None, None), ("nats://g", "t0ken", None)]),
        ("nats://u:@h", [("nats://h", "u", "")]),
        ("", []),
    ],
)
def test_lists_are_taken_apart(text, found):
    assert addresses(text) == [Address(*one) for one in found]


@pytest.mark.parametrize(
    "text",
    [
        "http://x",
        "nats://",
        "nats://h:0",
        "nats://h:x",
        "nats://h:70000",
        "nats://[::1",
        "h h",
        "h\nx",
        "nats://u:p@",
        "nats://u:p@h:",
        "nats://h/\x00",
    ],
)
def test_invalid_address_is_refused(text):
    with pytest.raises(UsageError, match="is not the URL of a server") as caught:
        addresses(text)
    assert caught.value.message.isprintable()


@pytest.mark.guarantee("commands-14")
@given(scheme, secret, host, port, st.sampled_from(FORMS))
@example("nats://", "Q7top#secret7Q", "127.0.0.1", ":4222", "{}")
@example("", "Q712/347Q", "h", "", "{}")
@example("nats://", "Q7,nats://x7Q", "h", "", "{}")
def test_a_password_is_never_shown(scheme, password, host, port, form):
    text = form.format(f"{scheme}u:{password}@{host}{port}")
    said = [redact(text), repr(Context(url=text)), repr(replace(Context(), url=text))]
    try:
        said += [repr(address) + address.url for address in addresses(text)]
    except UsageError as error:
        said += [error.message, error.hint or ""]
    for shown in said:
        assert password not in shown
        assert "Q7" not in shown


@example("Q7a,b7Q")
@given(secret.filter(lambda text: "@" not in text))
def test_a_password_whose_host_was_forgotten_is_not_shown_either(password):
    text = f"nats://u:{password}"
    with pytest.raises(UsageError) as caught:
        addresses(text)
    assert "Q7" not in caught.value.message + redact(text) + repr(Context(url=text))
