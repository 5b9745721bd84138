"""Every way to authenticate really connects to a server that demands it, and a wrong one ends at once."""

import json
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from kvctl.connection import connect
from kvctl.contexts import Context
from kvctl.errors import AuthenticationRefused, KvctlError, NoServer, PermissionDenied, UsageError
from kvctl.jetstream.api import Api
from kvctl.server import run_server
from tests.support.credentials import USER, Key, Operator, creds_file
from tests.support.raw import RawClient

CERTS = Path(__file__).parents[1] / "certs"
CA = str(CERTS / "ca.pem")
BASE = 'listen: 127.0.0.1:@client@\njetstream { store_dir: "@store@" }\n'


async def account(context: Context) -> dict[str, Any]:
    """Connect and ask for JetStream's account information."""
    connection = await connect(context)
    try:
        prefix = context.api_prefix or (f"$JS.{context.domain}.API" if context.domain else "$JS.API")
        answer: dict[str, Any] = json.loads((await connection.request(f"{prefix}.INFO")).payload)
        return answer
    finally:
        await connection.close()


async def refusal(context: Context) -> KvctlError:
    """What `connect` raises; it must not take long about it."""
    begun = time.monotonic()
    with pytest.raises(KvctlError) as caught:
        await account(replace(context, timeout=timedelta(seconds=300)))
    assert time.monotonic() - begun < 60
    return caught.value


async def assert_refused(context: Context) -> None:
    error = await refusal(context)
    assert isinstance(error, AuthenticationRefused), repr(error)
    assert (error.exit_code, bool(error.hint)) == (5, True)


class TestUserAndPassword:
    @pytest.fixture
    def url(self):
        users = "authorization { users: [ { user: ann, password: s3cret } ] }"
        with run_server(config=BASE + users) as server:
            yield server.url

    async def test_connects(self, url):
        assert "streams" in await account(Context(url=url, user="ann", password="s3cret"))

    async def test_in_the_url(self, url):
        assert "streams" in await account(Context(url=url.replace("//", "//ann:s3cret@")))

    async def test_the_url_is_shown_without_them(self, url):
        connection = await connect(Context(url=url.replace("//", "//ann:s3cret@")))
        await connection.close()
        assert "s3cret" not in connection.url
        error = await refusal(Context(url=url.replace("//", "//ann:wr0ng@")))
        assert "wr0ng" not in f"{error.message} {error.hint}"

    @pytest.mark.parametrize(
        "wrong",
        [
            Context(),
            Context(user="ann", password="wrong"),
            Context(user="eve", password="s3cret"),
            Context(token="s3cret"),
        ],
    )
    async def test_wrong_ones_are_refused(self, url, wrong):
        await assert_refused(replace(wrong, url=url))

    async def test_missing_ones_are_reported_as_missing(self, url):
        with pytest.raises(AuthenticationRefused, match="requires credentials, and none were given"):
            await account(Context(url=url))


class TestToken:
    @pytest.fixture
    def url(self):
        with run_server(config=BASE + "authorization { token: t0ken }") as server:
            yield server.url

    async def test_connects(self, url):
        assert "streams" in await account(Context(url=url, token="t0ken"))

    async def test_in_the_url(self, url):
        assert "streams" in await account(Context(url=url.replace("//", "//t0ken@")))

    async def test_a_user_without_password_is_a_token_as_for_the_nats_cli(self, url):
        assert "streams" in await account(Context(url=url, user="t0ken"))

    @pytest.mark.parametrize("token", [None, "wrong"])
    async def test_wrong_ones_are_refused(self, url, token):
        await assert_refused(Context(url=url, token=token))


class TestNkey:
    @pytest.fixture
    def key(self):
        return Key(USER)

    @pytest.fixture
    def url(self, key):
        with run_server(config=BASE + f"authorization {{ users: [ {{ nkey: {key.public} }} ] }}") as server:
            yield server.url

    async def test_connects(self, url, key, tmp_path):
        seed = tmp_path / "user.nk"
        seed.write_text(f"{key.seed}\n")
        assert "streams" in await account(Context(url=url, nkey=str(seed)))

    async def test_another_key_is_refused(self, url, tmp_path):
        seed = tmp_path / "user.nk"
        seed.write_text(Key(USER).seed)
        await assert_refused(Context(url=url, nkey=str(seed)))
        await assert_refused(Context(url=url))

    @pytest.mark.parametrize("content", [None, "", "garbage", "SUGARBAGE", "SU" + "A" * 56, "\xff\x00"])
    async def test_a_file_that_holds_no_seed_is_a_usage_error(self, url, tmp_path, content):
        seed = tmp_path / "user.nk"
        if content is not None:
            seed.write_bytes(content.encode("latin-1"))
        error = await refusal(Context(url=url, nkey=str(seed)))
        assert isinstance(error, UsageError), repr(error)
        assert str(seed) in error.message


class TestCredentialsFile:
    @pytest.fixture
    def operator(self):
        return Operator()

    @pytest.fixture
    def url(self, operator):
        with run_server(config=operator.config) as server:
            yield server.url

    async def test_connects(self, url, operator, tmp_path):
        path = creds_file(tmp_path / "user.creds", *operator.user())
        assert "streams" in await account(Context(url=url, creds=str(path)))

    async def test_jwt_and_seed_in_the_context_itself(self, url, operator):
        jwt, seed = operator.user()
        assert "streams" in await account(Context(url=url, user_jwt=jwt, user_seed=seed))

    async def test_expired_and_unknown_users_are_refused(self, url, operator, tmp_path):
        for jwt, seed in (operator.user(expires=-60), Operator().user()):
            path = creds_file(tmp_path / "user.creds", jwt, seed)
            await assert_refused(Context(url=url, creds=str(path)))
        await assert_refused(Context(url=url))

    async def test_a_seed_that_is_not_the_users_is_refused(self, url, operator, tmp_path):
        path = creds_file(tmp_path / "user.creds", operator.user()[0], operator.user()[1])
        await assert_refused(Context(url=url, creds=str(path)))

    @pytest.mark.parametrize("content", [None, "", "garbage", "-----BEGIN NATS USER JWT-----\ngarbage\n"])
    async def test_a_damaged_file_is_a_usage_error(self, url, tmp_path, content):
        path = tmp_path / "user.creds"
        if content is not None:
            path.write_text(content)
        error = await refusal(Context(url=url, creds=str(path)))
        assert isinstance(error, UsageError), repr(error)
        assert str(path) in error.message


def _tls(**more: object) -> str:
    options = {"cert_file": f'"{CERTS}/server.pem"', "key_file": f'"{CERTS}/server-key.pem"', **more}
    return BASE + "tls { " + ", ".join(f"{name}: {value}" for name, value in options.items()) + " }"


def _certified(url: str, who: str) -> Context:
    return Context(url=url, ca=CA, cert=str(CERTS / f"{who}.pem"), key=str(CERTS / f"{who}-key.pem"))


class TestTls:
    @pytest.fixture
    def url(self):
        with run_server(config=_tls()) as server:
            yield server.url

    @pytest.mark.parametrize("scheme", ["nats", "tls"])
    async def test_connects(self, url, scheme):
        context = Context(url=url.replace("nats:", f"{scheme}:"), ca=CA)
        assert "streams" in await account(context)

    @pytest.mark.parametrize("ca", [None, "stranger.pem"])
    async def test_an_unknown_authority_is_refused(self, url, ca):
        error = await refusal(Context(url=url, ca=str(CERTS / ca) if ca else None))
        assert error.exit_code == 5
        assert "certificate" in error.message.lower()
        assert "--tls-ca" in (error.hint or "")

    @pytest.mark.guarantee("commands-10", by="fault")
    async def test_a_server_without_tls_does_not_get_away_with_it(self, server):
        error = await refusal(Context(url=server.url.replace("nats:", "tls:"), ca=CA))
        assert isinstance(error, NoServer)

    @pytest.mark.parametrize("wrong", [Context(ca="gone.pem"), Context(ca=__file__), Context(cert="gone.pem")])
    async def test_files_that_cannot_be_used_are_a_usage_error(self, url, wrong):
        error = await refusal(replace(wrong, url=url))
        assert isinstance(error, UsageError), repr(error)


class TestClientCertificate:
    @pytest.fixture
    def url(self):
        with run_server(config=_tls(ca_file=f'"{CERTS}/ca.pem"', verify="true")) as server:
            yield server.url

    async def test_connects(self, url):
        assert "streams" in await account(_certified(url, "client"))

    async def test_none_is_refused(self, url):
        await assert_refused(Context(url=url, ca=CA))

    async def test_one_of_another_authority_is_refused(self, url):
        await assert_refused(_certified(url, "stranger"))


class TestTlsFirst:
    @pytest.fixture
    def url(self):
        with run_server(config=_tls(handshake_first="true")) as server:
            yield server.url

    async def test_connects(self, url):
        assert "streams" in await account(Context(url=url, ca=CA, tls_first=True))

    async def test_missing_tls_first_is_hinted(self, url):
        error = await refusal(Context(url=url, ca=CA))
        assert isinstance(error, NoServer)
        assert "--tls-first" in (error.hint or "")

    async def test_tls_first_against_a_server_that_sends_info_first(self, server):
        error = await refusal(Context(url=server.url, ca=CA, tls_first=True))
        assert error.exit_code == 5


class TestInboxPrefix:
    @pytest.fixture
    def url(self):
        permissions = '{ publish: "$JS.API.>", subscribe: "_INBOX_ann.>" }'
        users = f"authorization {{ users: [ {{ user: ann, password: p, permissions: {permissions} }} ] }}"
        with run_server(config=BASE + users) as server:
            yield server.url

    async def test_replies_come_where_they_are_allowed(self, url):
        context = Context(url=url, user="ann", password="p", inbox_prefix="_INBOX_ann")
        assert "streams" in await account(context)

    async def test_missing_inbox_prefix_error_names_the_subject(self, url):
        error = await refusal(Context(url=url, user="ann", password="p"))
        assert isinstance(error, PermissionDenied)
        assert (error.subject or "").startswith("_INBOX.")
        assert "--inbox-prefix" in (error.hint or "")


class TestWhereJetStreamIs:
    async def test_domain(self, leaf):
        assert (await account(leaf.contexts["hub-via-leaf"]))["domain"] == "hub"
        assert (await account(leaf.contexts["leaf"]))["domain"] == "leaf"

    async def test_api_prefix(self, accounts):
        origin = accounts.contexts["origin"]
        with RawClient(origin.url, user=origin.user, password=origin.password) as raw:
            raw.create_bucket("ORDERS")
        connection = await connect(accounts.contexts["origin-via-replica"])
        answer = json.loads((await connection.request("ORIGIN.API.STREAM.INFO.KV_ORDERS")).payload)
        await connection.close()
        assert answer["config"]["name"] == "KV_ORDERS"


class TestNoServer:
    @pytest.fixture
    def in_order(self, monkeypatch):
        """Several servers are tried in the order given, not a random one."""
        monkeypatch.setattr("random.shuffle", lambda _: None)

    async def test_a_dead_port_gives_one_hint_how_to_start_one(self):
        with run_server() as server:
            url = server.url
        error = await refusal(Context(url=url))
        assert isinstance(error, NoServer)
        assert "kvctl server run" in (error.hint or "")

    async def test_an_unknown_host(self):
        assert isinstance(await refusal(Context(url="nats://no-such-host.invalid:4222")), NoServer)

    async def test_one_hanging_server_of_several_does_no_harm(self, server, own_server, in_order):
        own_server.pause()
        context = Context(url=f"{own_server.url},{server.url}", timeout=timedelta(seconds=6))
        assert "streams" in await account(context)

    async def test_one_refusing_server_of_several_does_no_harm(self, server, in_order):
        with run_server(config=BASE + "authorization { token: t0ken }") as strict:
            assert "streams" in await account(Context(url=f"{strict.url},{server.url}"))

    async def test_the_others_are_there_for_a_reconnect(self, server, in_order):
        with run_server() as first:
            connection = await connect(Context(url=f"{first.url},{server.url}"))
            assert connection.url == first.url
            first.kill()
            await Api(connection).account_info()  # asks again when the connection is lost meanwhile
            assert connection.url == server.url
            await connection.close()

    async def test_one_dead_server_of_several_does_no_harm(self, server):
        with run_server() as dead:
            url = dead.url
        assert "streams" in await account(Context(url=f"{url},{server.url}"))
