"""Tests of the adapter to Typer: supported versions, and what other versions are told."""

import re
from pathlib import Path

import pytest
import typer

from kvctl.cli.app.main import main
from kvctl.cli.app.typer_adapter import SUPPORTED, require_supported
from kvctl.errors import KvctlError


def test_supported_version_is_the_one_that_is_installed_and_pinned():
    require_supported()
    (pin,) = re.findall(
        r'"typer>=(\d+)\.(\d+),<(\d+)\.(\d+)"', (Path(__file__).parents[3] / "pyproject.toml").read_text()
    )
    assert tuple(map(int, pin)) == (*SUPPORTED, SUPPORTED[0], SUPPORTED[1] + 1)


@pytest.mark.parametrize("version", ["0.27.1", "0.29.0", "0.29.0rc1", "1.28.0", "0.0.0"])
def test_unsupported_version_is_refused_with_the_command_that_helps(version):
    with pytest.raises(KvctlError, match=f"Typer {version} is not supported") as caught:
        require_supported(version)
    assert "pip install 'typer==0.28.*'" in str(caught.value.hint)


def test_command_line_with_an_unsupported_version_exits_with_1(monkeypatch, capfd):
    monkeypatch.setattr(typer, "__version__", "0.29.0")
    assert main(["version"]) == 1
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("error: Typer 0.29.0 is not supported, kvctl needs 0.28\n")
    assert "hint: Install it with" in err
