"""The action for CI at the top level: what it declares, and its script on a real server."""

import os
import re
import subprocess
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import yaml

from tests.cli.conftest import run_process
from tests.support.readme import ROOT

ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
INSTALL, PLAN = ACTION["runs"]["steps"]
EXPRESSION = re.compile(r"\$\{\{\s*inputs\.([\w-]+)")


@dataclass(frozen=True)
class Done:
    """Result of a step."""

    exit_code: int
    printed: str
    summary: str
    outputs: dict[str, str]


def run_plan(directory: Path, environment: dict[str, str], **inputs: str) -> Done:
    """Run the step that plans, as a runner would: inputs in the environment, results in files."""
    defaults = {name: one.get("default", "") for name, one in ACTION["inputs"].items()}
    given = defaults | {name.replace("_", "-"): value for name, value in inputs.items()}
    variables = {name: given[EXPRESSION.findall(text)[0]] for name, text in PLAN["env"].items()}
    files = {name: directory / name for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    for file in files.values():
        file.unlink(missing_ok=True)
    runner = {"RUNNER_TEMP": str(directory), **{name: str(path) for name, path in files.items()}}
    path = f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, **runner, **environment, **variables, "PATH": path}
    command = [*"bash --noprofile --norc -eo pipefail -c".split(), PLAN["run"]]
    done = subprocess.run(command, cwd=directory, timeout=60, env=env, capture_output=True, text=True)
    outputs = dict(line.split("=", 1) for line in files["GITHUB_OUTPUT"].read_text().splitlines())
    stop, *printed, go_on = done.stdout.splitlines(keepends=True)
    assert re.fullmatch(r"::stop-commands::\w{32}\n", stop)
    assert go_on == f"::{stop.split('::')[2].strip()}::\n"
    assert stop.split("::")[2].strip() not in "".join(printed) + done.stderr
    return Done(done.returncode, "".join(printed) + done.stderr, files["GITHUB_STEP_SUMMARY"].read_text(), outputs)


def test_action_declares_what_it_uses():
    used = {
        name for step in ACTION["runs"]["steps"] for text in step["env"].values() for name in EXPRESSION.findall(text)
    }
    assert used == set(ACTION["inputs"])
    assert {one["value"] for one in ACTION["outputs"].values()} == {
        f"${{{{ steps.{PLAN['id']}.outputs.{name} }}}}" for name in ACTION["outputs"]
    }
    assert [name for name, one in ACTION["inputs"].items() if one.get("required")] == ["file"]


def test_inputs_reach_scripts_only_through_the_environment():
    assert not [step["name"] for step in ACTION["runs"]["steps"] if "${{" in step["run"]]
    assert {step["shell"] for step in ACTION["runs"]["steps"]} == {"bash"}


def test_plan_is_written_to_the_summary_with_outputs(server, tmp_path, bucket_name):
    text = f"version: 1\nname: {bucket_name}\nbuckets:\n  {bucket_name}: {{history: 5}}\n"
    (tmp_path / "t.yaml").write_text(text)
    pending = run_plan(tmp_path, {}, file="t.yaml", url=server.url)
    assert (pending.exit_code, pending.outputs) == (0, {"exit-code": "8", "changes": "true"})
    heading, _, plan = pending.summary.partition("\n\n")
    assert heading == "### Topology plan"
    assert f"    + bucket `{bucket_name}`\n" in plan
    assert "    Plan: 1 to create, 0 to change" in plan
    assert dedent(plan) == pending.printed
    failing = run_plan(tmp_path, {"NATS_URL": server.url}, file="t.yaml", fail_on_changes="true")
    assert (failing.exit_code, failing.outputs["changes"]) == (8, "true")
    run_process("topology", "apply", "-f", str(tmp_path / "t.yaml"), "--yes", "-s", server.url)
    nothing = run_plan(tmp_path, {}, file="t.yaml", url=server.url, fail_on_changes="true")
    assert (nothing.exit_code, nothing.outputs) == (0, {"exit-code": "0", "changes": "false"})
    assert nothing.summary == "### Topology plan\n\n    Nothing to change\n"


def test_failed_plan_fails_the_step_with_its_error_in_the_summary(tmp_path):
    (tmp_path / "t; touch injected.yaml").write_text("version: 1\nbuckets:\n  ORDERS: {histori: 5}\n")
    done = run_plan(tmp_path, {}, file="t; touch injected.yaml", url="nats://user:secret@127.0.0.1:1")
    assert (done.exit_code, done.outputs) == (2, {"exit-code": "2", "changes": ""})
    assert "\n\n    error: " in done.summary
    assert "histori" in done.summary
    assert "secret" not in done.printed + done.summary
    assert not (tmp_path / "injected.yaml").exists()


@pytest.mark.slow
def test_install_step_puts_kvctl_on_the_path(tmp_path):
    github_path = tmp_path / "path"
    runner = {"RUNNER_TEMP": str(tmp_path), "GITHUB_PATH": str(github_path), "PACKAGE": str(ROOT)}
    subprocess.run(["bash", "-c", INSTALL["run"]], env={**os.environ, **runner}, check=True, timeout=600)
    command = Path(github_path.read_text().strip(), "kvctl")
    assert subprocess.run([command, "version"], capture_output=True, check=True).stdout


def test_lines_that_the_file_holds_are_neither_commands_nor_markdown(tmp_path):
    name = "a\\n````\\n\\n## Plan: 0 changes\\n::error file=app.js,line=1::injected\\n````text\\n"
    (tmp_path / "t.yaml").write_text(f'version: 1\nbuckets:\n  "{name}": {{}}\n')
    done = run_plan(tmp_path, {}, file="t.yaml", url="nats://127.0.0.1:1")
    assert done.exit_code == 2
    assert not [line for line in done.printed.splitlines() if line.startswith(("::", "##", "````"))]
    assert {line[:4] for line in done.summary.splitlines()[2:]} <= {"    ", ""}


def test_secrets_of_the_job_are_not_printed_by_the_file(tmp_path, server):
    (tmp_path / "t.yaml").write_text(
        "version: 1\nbuckets:\n  B: {description: 'x ${SECRET}'}\n  C: {description: 'y ${NATS_PASSWORD}'}\n"
    )
    environment = {"SECRET": "hidden1", "NATS_PASSWORD": "hidden2"}
    done = run_plan(tmp_path, environment, file="t.yaml", url=server.url)
    assert done.exit_code == 2
    assert "hidden" not in done.printed + done.summary
    (tmp_path / "t.yaml").write_text("version: 1\nbuckets:\n  B: {description: 'x ${SECRET}'}\n")
    allowed = run_plan(tmp_path, environment, file="t.yaml", url=server.url, variables="OTHER SECRET")
    assert "hidden1" in allowed.printed
