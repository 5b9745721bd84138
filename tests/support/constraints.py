"""The releases that `.ci/run` and README's test command install, so that no dependency's release makes main red.

`python -m tests.support.constraints` writes the newest releases that pyproject's ranges allow.
"""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILE = ROOT / ".ci" / "constraints.txt"


def newest() -> list[str]:
    """Requirements such as `rich==15.0.0`, one for each package that the tests install, as pip chooses them today."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--report", "-"]
    done = subprocess.run([*command, f"{ROOT}[test]"], capture_output=True, text=True, check=True)
    packages = (package["metadata"] for package in json.loads(done.stdout)["install"])
    return sorted(f"{package['name']}=={package['version']}" for package in packages if package["name"] != "kvctl")


if __name__ == "__main__":
    FILE.write_text("".join(f"{line}\n" for line in newest()), encoding="utf-8")
