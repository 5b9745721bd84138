"""Tests of the adapter to nats-py: supported versions, and the parser's guard."""

import re
from pathlib import Path

import pytest
from nats.aio.client import Client as NatsClient
from nats.protocol.parser import Parser

from kvctl.connection.nats_client import SUPPORTED, install_parser, require_supported
from kvctl.errors import KvctlError


class TestLibraryVersion:
    def test_the_supported_version_is_the_one_that_is_installed_and_pinned(self):
        require_supported()
        (pin,) = re.findall(
            r'"nats-py\[nkeys\]>=(\d+)\.(\d+),<(\d+)\.(\d+)"',
            (Path(__file__).parents[2] / "pyproject.toml").read_text(),
        )
        assert tuple(map(int, pin)) == (*SUPPORTED, SUPPORTED[0], SUPPORTED[1] + 1)

    @pytest.mark.parametrize("version", ["2.15.9", "2.17.0", "2.17.0rc1", "3.16.0", "0.0.0"])
    def test_another_version_is_refused_with_the_command_that_helps(self, version):
        with pytest.raises(KvctlError, match=f"nats-py {version} is not supported") as caught:
            require_supported(version)
        assert "pip install 'nats-py[nkeys]==2.16.*'" in str(caught.value.hint)


class TestGuard:
    """The parser is only put in where the library looks as it did."""

    def test_takes_over_a_fresh_client(self):
        client = NatsClient()
        assert install_parser(client, lambda _: False) is client._ps

    @pytest.mark.parametrize("missing", ["_process_msg", "_transport", "_subs", "_sid", "_ps"])
    def test_leaves_a_client_without_what_it_needs_alone(self, missing):
        class Changed:
            pass

        client = Changed()
        for name in ("_process_msg", "_transport", "_subs", "_sid"):
            setattr(client, name, None)
        client._ps = stock = Parser()  # type: ignore[attr-defined]
        delattr(client, missing)
        assert install_parser(client, lambda _: False) is None
        assert getattr(client, "_ps", stock) is stock

    def test_leaves_a_parser_of_another_shape_alone(self):
        client = NatsClient()
        client._ps = object()
        assert install_parser(client, lambda _: False) is None

    async def test_takes_over_in_the_middle_of_a_line(self):
        client, errors = NatsClient(), list[str]()
        await client._ps.parse(b"-ERR 'so")
        parser = install_parser(client, lambda text: errors.append(text) is None)
        assert parser is client._ps
        await parser.parse(b"me'\r\n-ERR 'o")
        await parser.parse(b"ther'\r\n")
        assert errors == ["some", "other"]
