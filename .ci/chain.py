"""Check the published artefacts. They are the wheel, its bytes, its parts, its workflows, and the
names of its API.

poe chain                 needs the group `chain`: pip install --group chain
poe chain PYTHON          the bill of materials is of that interpreter's environment
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
HERE = Path(sys.executable).parent
SBOM = ROOT / ".sbom.json"


def run(*command: str | Path, **environment: str) -> str:
    """Run a tool of this environment and return its output. Raises `CalledProcessError`."""
    name, *arguments = command
    tool = shutil.which(str(name), path=str(HERE)) or str(name)
    print("$", name, *arguments, flush=True)
    done = subprocess.run(
        [tool, *arguments], cwd=ROOT, env=os.environ | environment, text=True, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    if done.returncode:
        print(done.stdout)
        raise subprocess.CalledProcessError(done.returncode, str(name))
    return done.stdout


def built(folder: Path) -> dict[str, str]:
    """Build wheel and source distribution, and return their digests by name."""
    moment = run("git", "log", "-1", "--format=%ct").strip()
    run("hatchling", "build", "-d", folder, SOURCE_DATE_EPOCH=moment)
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.iterdir())
    }


def main(arguments: list[str]) -> int:
    """Check all and return an exit code."""
    with tempfile.TemporaryDirectory(prefix="headrace-chain-") as name:
        first, second = built(Path(name, "1")), built(Path(name, "2"))
        if first != second or len(first) != 2:
            print(f"two builds differ: {first} {second}")
            return 1
        print("\n".join(f"{digest}  {file}" for file, digest in first.items()))
        (wheel,) = Path(name, "1").glob("*.whl")
        # W004: Django imports its migrations by their file names, which begin with a number
        run(
            "check-wheel-contents",
            "--ignore",
            "W004",
            "--toplevel",
            "headrace,headrace_pytest.py",
            wheel,
        )
    interpreter = arguments[0] if arguments else sys.executable
    run(
        "cyclonedx-py",
        "environment",
        "--pyproject",
        "pyproject.toml",
        "--output-reproducible",
        "-o",
        SBOM,
        interpreter,
    )
    parts = [part["name"] for part in json.loads(SBOM.read_text("utf-8"))["components"]]
    print(f"{SBOM.name}: {len(parts)} parts")
    run("zizmor", "--offline", "--no-progress", ".github/workflows")
    tags = run("git", "tag", "--list", "v*", "--sort=-version:refname").split()
    if tags:
        run("griffe", "check", "headrace", "--search", "src", "--against", tags[0])
    else:
        print("no release yet: nothing to compare the API with")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except subprocess.CalledProcessError as error:
        sys.exit(f"error: {error.cmd} failed")
