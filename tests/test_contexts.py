"""Context files of the `nats` CLI, and which of flags, files and environment wins."""

import json
import stat
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from kvctl.contexts import Context, ContextStore, resolve
from kvctl.errors import ContextNotFound, ReadOnly, UsageError
from kvctl.urls import redact

# What `nats context add` writes: every field, most of them empty.
CLI_FILE = {
    "description": "",
    "url": "nats://prod:4222",
    "socks_proxy": "",
    "token": "",
    "user": "ann",
    "password": "s3cret",
    "creds": "",
    "nkey": "",
    "cert": "",
    "key": "",
    "ca": "",
    "nsc": "",
    "jetstream_domain": "hub",
    "jetstream_api_prefix": "",
    "jetstream_event_prefix": "",
    "inbox_prefix": "_INBOX_ann",
    "user_jwt": "",
    "user_seed": "",
    "color_scheme": "blue",
    "tls_first": False,
    "windows_ca_certs_match": None,
}

ENVIRONMENT = {"NATS_URL": "nats://env", "NATS_USER": "env", "NATS_PASSWORD": "env-p", "NATS_CA": "/env-ca"}


@pytest.fixture
def store(tmp_path):
    return ContextStore(tmp_path / "nats")


def write(store: ContextStore, name: str, **document: Any) -> Path:
    path = store.directory / "context" / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document))
    path.chmod(0o600)
    return path


class TestFiles:
    def test_reads_the_nats_clis_file(self, store):
        write(store, "prod", **CLI_FILE)
        assert store.load("prod") == Context(
            name="prod",
            url="nats://prod:4222",
            user="ann",
            password="s3cret",
            domain="hub",
            inbox_prefix="_INBOX_ann",
            origin="context `prod`",
        )

    def test_empty_and_null_fields_are_unset(self, store):
        write(store, "bare", url="", user=None, creds="", tls_first=None)
        assert store.load("bare") == Context(name="bare", origin="context `bare`")

    def test_a_saved_context_reads_back(self, store):
        context = Context(
            name="all",
            url="nats://a:1,nats://b:2",
            user="u",
            password="p",
            token="t",
            creds="/c",
            nkey="/n",
            cert="/cert",
            key="/key",
            ca="/ca",
            tls_first=True,
            inbox_prefix="_I",
            domain="d",
            api_prefix="P.API",
            user_jwt="j",
            user_seed="s",
            description="text",
            read_only=True,
            origin="context `all`",
        )
        store.save(context)
        assert store.load("all") == context

    def test_saving_keeps_unknown_and_unchanged_fields(self, store):
        path = write(store, "prod", **{**CLI_FILE, "creds": "~/prod.creds", "future": {"a": 1}})
        before = json.loads(path.read_text())
        loaded = store.load("prod")
        store.save(Context(**{**_settings(loaded), "domain": "leaf"}))
        assert json.loads(path.read_text()) == {**before, "jetstream_domain": "leaf"}

    def test_clearing_a_field_empties_it(self, store):
        path = write(store, "prod", **{**CLI_FILE, "tls_first": True})
        store.save(Context(**{**_settings(store.load("prod")), "domain": None, "tls_first": False}))
        document = json.loads(path.read_text())
        assert (document["jetstream_domain"], document["tls_first"]) == ("", False)

    def test_files_are_for_their_owner_only(self, store):
        path = store.save(Context(name="a"))
        store.select("a")
        modes = [stat.S_IMODE(p.stat().st_mode) for p in (path, path.parent, store.directory / "context.txt")]
        assert modes == [0o600, 0o700, 0o600]
        assert sorted(p.name for p in store.directory.rglob("*") if p.is_file()) == ["a.json", "context.txt"]

    def test_saving_replaces_a_readable_file_by_a_private_one(self, store):
        path = write(store, "a", url="nats://x")
        path.chmod(0o644)
        assert "Other users can read" in store.load("a").warnings[0]
        store.save(Context(name="a", url="nats://y"))
        assert store.load("a").warnings == ()

    def test_paths_expand_home_and_variables(self, store, home, monkeypatch):
        monkeypatch.setenv("KEYS", "/keys")
        write(store, "a", creds="~/a.creds", nkey="$KEYS/a.nk", ca="file:///ca.pem")
        loaded = store.load("a")
        assert (loaded.creds, loaded.nkey, loaded.ca) == (f"{home}/a.creds", "/keys/a.nk", "/ca.pem")

    @pytest.mark.parametrize("name", ["", "..", "a/b", "../x", "a\\b", "a..b", "a\nb", "\x1b[31m"])
    def test_names_cannot_leave_the_directory(self, store, name):
        for act in (store.load, store.delete, store.select):
            with pytest.raises(UsageError):
                act(name)

    @pytest.mark.parametrize("text", ["", "{", "[]", '"text"', '{"url": 7}', '{"tls_first": "yes"}', "\xff"])
    def test_a_damaged_file_is_a_usage_error(self, store, text):
        write(store, "bad").write_bytes(text.encode("latin-1"))
        with pytest.raises(UsageError, match="bad"):
            store.load("bad")

    def test_names_are_sorted_and_skip_other_files(self, store):
        assert store.names() == []
        for name in ("b", "a", "ngs.js"):
            write(store, name, url="x")
        (store.directory / "context" / "empty.json").touch()
        (store.directory / "context" / "notes.txt").write_text("x")
        assert store.names() == ["a", "b", "ngs.js"]

    def test_select_and_delete(self, store):
        write(store, "a")
        write(store, "b")
        store.select("a")
        store.select("b")
        assert store.selected() == "b"
        assert (store.directory / "previous-context.txt").read_text() == "a"
        store.delete("b")
        assert (store.names(), store.selected()) == (["a"], None)

    def test_a_missing_context_names_the_nearest(self, store):
        write(store, "production")
        for act in (store.load, store.delete, store.select):
            with pytest.raises(ContextNotFound) as caught:
                act("prodution")
            assert "Did you mean `production`?" in (caught.value.hint or "")

    def test_a_read_only_context_refuses_writes_by_name_of_the_setting(self):
        Context().require_writable()
        with pytest.raises(ReadOnly, match=r"^Bucket `b` is read-only$") as caught:
            Context(read_only=True).require_writable("Bucket `b`")
        assert caught.value.hint == "`--read-only` or the context's `read_only` is set"

    def test_secrets_are_not_in_the_representation(self):
        context = Context(user="u", password="s3cret", token="t0ken", user_jwt="jwt-x", user_seed="SUAX")
        assert not {"s3cret", "t0ken", "jwt-x", "SUAX"} & set(repr(context).replace("'", " ").split())
        assert context.secrets() == ("password", "token", "user_jwt", "user_seed")


class TestPrecedence:
    def test_default_server_is_this_machine(self, store):
        assert resolve({}, {}, store) == Context()

    def test_flag_beats_named_context_beats_environment(self, store):
        write(store, "x", url="nats://ctx", jetstream_domain="ctx")
        found = resolve({"context": "x"}, ENVIRONMENT, store)
        assert (found.url, found.domain, found.user, found.ca) == ("nats://ctx", "ctx", "env", "/env-ca")
        assert found.origin == "context `x`"
        found = resolve({"context": "x", "server": "nats://flag", "domain": "flag"}, ENVIRONMENT, store)
        assert (found.url, found.domain, found.origin) == ("nats://flag", "flag", "flag")

    def test_an_empty_field_of_the_context_falls_through(self, store):
        write(store, "x", url="", ca="")
        found = resolve({"context": "x"}, ENVIRONMENT, store)
        assert (found.url, found.ca, found.origin) == ("nats://env", "/env-ca", "NATS_URL")

    def test_environment_beats_the_selected_context(self, store):
        write(store, "x", url="nats://ctx", ca="/ctx-ca", jetstream_domain="ctx")
        store.select("x")
        assert resolve({}, {}, store).origin == "selected context `x`"
        found = resolve({}, {"NATS_CA": "/env-ca"}, store)
        assert (found.url, found.ca, found.domain) == ("nats://ctx", "/env-ca", "ctx")

    def test_nats_url_beats_nats_context_beats_the_selected_one(self, store):
        write(store, "x", url="nats://x")
        write(store, "y", url="nats://y")
        store.select("x")
        assert resolve({}, {"NATS_CONTEXT": "y"}, store).origin == "NATS_CONTEXT `y`"
        assert resolve({}, {"NATS_CONTEXT": "y", "NATS_URL": "nats://env"}, store).url == "nats://env"
        assert resolve({"context": "x"}, {"NATS_CONTEXT": "y"}, store).url == "nats://x"

    def test_credentials_do_not_travel_to_another_server(self, store):
        write(store, "prod", url="nats://prod", user="ann", password="s3cret", jetstream_domain="hub")
        store.select("prod")
        for flags, environ in (({"server": "nats://other"}, {}), ({}, {"NATS_URL": "nats://other"})):
            found = resolve(flags, environ, store)
            assert (found.user, found.password, found.domain) == (None, None, None)
        assert resolve({"context": "prod", "server": "nats://other"}, {}, store).user == "ann"

    def test_ways_to_authenticate_are_not_mixed(self, store):
        write(store, "x", user="ann", password="s3cret", cert="/c", key="/k")
        found = resolve({"context": "x", "creds": "/flag.creds", "tls_cert": "/flag.pem"}, ENVIRONMENT, store)
        assert (found.creds, found.user, found.password) == ("/flag.creds", None, None)
        assert (found.cert, found.key) == ("/flag.pem", None)

    def test_a_user_flag_takes_its_password_from_below(self, store, tmp_path):
        assert resolve({"user": "bob"}, {"NATS_PASSWORD": "p"}, store).password == "p"
        assert resolve({"user": "bob"}, {"NATS_USER": "ann", "NATS_PASSWORD": "p"}, store).password is None
        (tmp_path / "p").write_text("from file\n")
        flags = {"user": "bob", "password_file": str(tmp_path / "p")}
        assert resolve(flags, {"NATS_PASSWORD": "p"}, store).password == "from file"

    def test_token_file_and_its_faults(self, store, tmp_path):
        path = tmp_path / "token"
        path.write_text("t0ken\r\n")
        assert resolve({"token_file": str(path)}, {}, store).token == "t0ken"
        path.write_text("\n")
        for flags in ({"token_file": str(path)}, {"token_file": str(tmp_path / "missing")}):
            with pytest.raises(UsageError, match="--token-file"):
                resolve(flags, {}, store)

    @pytest.mark.parametrize("flag", ["context", "server", "creds", "domain"])
    def test_an_empty_flag_is_not_taken_for_none(self, store, flag):
        with pytest.raises(UsageError, match=f"--{flag}"):
            resolve({flag: ""}, {}, store)

    def test_missing_contexts_are_found_out(self, store):
        for flags, environ in (({"context": "gone"}, {}), ({}, {"NATS_CONTEXT": "gone"})):
            with pytest.raises(ContextNotFound):
                resolve(flags, environ, store)

    def test_timeout(self, store):
        assert resolve({"timeout": "2s"}, {"NATS_TIMEOUT": "9s"}, store).timeout == timedelta(seconds=2)
        assert resolve({}, {"NATS_TIMEOUT": "1m30s"}, store).timeout == timedelta(seconds=90)
        with pytest.raises(UsageError):
            resolve({"timeout": "0"}, {}, store)
        with pytest.raises(UsageError, match="timeout `soon`"):
            resolve({}, {"NATS_TIMEOUT": "soon"}, store)
        with pytest.raises(UsageError):
            resolve({"timeout": timedelta()}, {"NATS_TIMEOUT": "9s"}, store)

    def test_a_domain_flag_beats_the_context_s_api_prefix(self, store):
        write(store, "x", jetstream_api_prefix="HUB.API")
        context = resolve({"context": "x", "domain": "edge"}, {}, store)
        assert (context.domain, context.api_prefix) == ("edge", None)
        with pytest.raises(UsageError):
            resolve({"domain": "edge", "api_prefix": "HUB.API"}, {}, store)

    @pytest.mark.parametrize(
        "url", ["nats://h:4222", "h", "h:1,tls://u:p@[::1]:4222", "ws://h", "nats://h:1, nats://h:2", "nats://h:1,"]
    )
    def test_urls_that_are_taken(self, url):
        Context(url=url).check()

    @pytest.mark.parametrize(
        "url", ["http://h", "nats://", ":::", "nats://h:99999", "nats://h:x", "a b", "h,x y", "h:0"]
    )
    def test_invalid_url_is_refused(self, store, url):
        with pytest.raises(UsageError, match="is not the URL of a server"):
            Context(url=url).check()
        with pytest.raises(UsageError):
            store.save(Context(name="x", url=url))

    @pytest.mark.parametrize("name", ["domain", "api_prefix", "inbox_prefix"])
    @pytest.mark.parametrize("text", ["a b", "a\r\nPUB x 0", "a..b", "a.", ".", "*", "a.>"])
    def test_invalid_prefix_is_refused(self, name, text):
        with pytest.raises(UsageError, match="cannot be"):
            Context(**{name: text}).check()

    def test_prefixes_of_several_tokens(self):
        Context(api_prefix="$JS.hub.API", inbox_prefix="_INBOX.ann").check()
        with pytest.raises(UsageError):
            Context(domain="a.b").check()

    def test_read_only_from_flag_or_file(self, store):
        write(store, "x", read_only=True)
        assert resolve({"context": "x"}, {}, store).read_only
        assert resolve({"read_only": True}, {}, store).read_only
        assert not resolve({"read_only": False}, {}, store).read_only

    def test_the_directory_comes_from_the_environment(self, tmp_path):
        write(ContextStore(tmp_path / "config" / "nats"), "x", url="nats://x")
        assert resolve({"context": "x"}, {"XDG_CONFIG_HOME": str(tmp_path / "config")}).url == "nats://x"
        write(ContextStore(tmp_path / ".config" / "nats"), "y", url="nats://y")
        assert resolve({"context": "y"}, {"HOME": str(tmp_path)}).url == "nats://y"

    @pytest.mark.parametrize(
        "fields", [{"nsc": "nsc://op/acc/user"}, {"creds": "nsc://op/acc/user"}, {"user": "u", "password": "op://v/i"}]
    )
    def test_other_programs_are_never_run(self, store, fields):
        write(store, "x", **fields)
        with pytest.raises(UsageError, match="does not support"):
            resolve({"context": "x"}, {}, store)

    def test_a_secret_may_stand_in_a_variable(self, store):
        write(store, "x", user="u", password="env://SECRET")
        assert resolve({"context": "x"}, {"SECRET": "s3cret"}, store).password == "s3cret"
        with pytest.raises(UsageError, match="SECRET"):
            resolve({"context": "x"}, {}, store)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("nats://127.0.0.1:4222", "nats://127.0.0.1:4222"),
        ("nats://ann:s3cret@prod:4222", "nats://prod:4222"),
        ("tls://t0ken@prod", "tls://prod"),
        ("nats://a:p@x:1, nats://b:p@y:2", "nats://x:1,nats://y:2"),
        ("ann:s3cret@prod:4222", "prod:4222"),
        ("nats://a:p@@x", "nats://x"),
        ("nats://a:p@[::1]:4222", "nats://[::1]:4222"),
        ("nats://a:p@[bad", "nats://[bad"),
    ],
)
def test_urls_are_shown_without_credentials(url, shown):
    assert redact(url) == shown


def _settings(context: Context) -> dict[str, Any]:
    return {name: getattr(context, name) for name in Context.__slots__}


@pytest.mark.parametrize("flag", ["creds", "nkey", "password_file", "token_file"])
def test_a_file_with_a_secret_that_others_can_read_is_warned_of(flag, tmp_path):
    file = tmp_path / "secret"
    file.write_text("secret")
    for mode, warned in ((0o600, 0), (0o644, 1), (0o660, 1)):
        file.chmod(mode)
        context = resolve(
            {flag: str(file), **({"user": "ann"} if flag == "password_file" else {})}, {}, ContextStore(tmp_path)
        )
        assert len(context.warnings) == warned
        assert all("Other users can read" in text for text in context.warnings)
    assert not resolve({"creds": str(tmp_path / "missing")}, {}, ContextStore(tmp_path)).warnings
