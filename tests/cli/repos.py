"""kvctl run on one repository, for tests."""

import json
import re
from typing import Any

from tests.cli.conftest import Result, Run

MASKS = {
    r"\b[0-9a-f]{40}\b": "ID",
    r"\b[0-9a-f]{12}\b": "SHORT",
    r"\b1[78]\d{14}\b": "REVISION",
    r"\d+\.\d KiB": "SIZE",
}


class Repo:
    """A repository by its name: `repo("commit", "@main", "-m", "one")`, `repo.keys("get", "@main", "a")`.

    An argument that begins with `@` has the name put before it, and `.` alone stands for it.
    """

    def __init__(self, run: Run, url: str, name: str) -> None:
        self._run = run
        self._url = url
        self.name = name

    def __call__(self, command: str, *args: str, **settings: Any) -> Result:
        return self.run("repo", command, *args, **settings)

    def run(self, *args: str, **settings: Any) -> Result:
        """Any command."""
        line = [self.name if arg == "." else f"{self.name}{arg}" if arg.startswith("@") else arg for arg in args]
        env = {"KVCTL_AUTHOR": "ann@laptop", **settings.pop("env", {})}
        result = self._run(*line, "-s", self._url, env=env, **settings)
        return result.masked({**MASKS, re.escape(self.name): "REPO"})

    def text(self, *args: str, **settings: Any) -> str:
        """stdout of a command that has to succeed."""
        result = self.run(*args, **settings)
        assert result.exit_code == 0, result.err
        return result.out.strip()

    def json(self, *args: str) -> Any:
        """Its JSON."""
        return json.loads(self.text(*args, "-o", "json"))

    def put(self, branch: str = "main", **values: str) -> None:
        """Stage values; `app_port` is `app.port`."""
        for key, value in values.items():
            self.text("put", f"@{branch}", key.replace("_", "."), value)

    def commit(self, message: str, branch: str = "main", **values: str) -> str:
        """Stage values and commit; the commit's id."""
        self.put(branch, **values)
        return self.text("repo", "commit", f"@{branch}", "-m", message)
