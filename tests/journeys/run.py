"""Run the journeys, each in a fresh environment. It has this checkout as a wheel and the journey's
own requirements.

    python tests/journeys/run.py              all
    python tests/journeys/run.py django repl  these

A journey is a folder here with a `journey.py`, whose inline metadata (PEP 723) says what it needs.
It runs in a copy of its folder, in a new directory, and judges itself: its exit code is 0, or its
output is shown.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import venv
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
AT_ONCE = 2
RUN_WITHIN_S, INSTALL_WITHIN_S = 120.0, 300.0
# as PEP 723 has it
METADATA = re.compile(r"(?m)^# /// script$\s(?P<content>(^#(| .*)$\s)+)^# ///$")


def journeys() -> list[str]:
    return sorted(path.parent.name for path in HERE.glob("*/journey.py"))


def declared(name: str) -> list[str]:
    """Return the requirements that a journey declares."""
    found = METADATA.search((HERE / name / "journey.py").read_text("utf-8"))
    assert found, f"{name}/journey.py declares nothing"
    lines = [line[2:] for line in found["content"].splitlines()]
    requirements: list[str] = tomllib.loads("\n".join(lines))["dependencies"]
    return requirements


def play(name: str, folder: Path, programs: Path) -> str | None:
    """Run a journey in a copy at *folder* with the programs of an environment. Return its output if
    it failed."""
    ignored = shutil.ignore_patterns("__pycache__", ".*cache")
    shutil.copytree(HERE / name, folder, ignore=ignored)
    shutil.copy(HERE / "programs.py", folder)
    home = folder.with_name(f"{folder.name}-home")
    home.mkdir()
    environment = {
        "PATH": f"{programs}:/usr/local/bin:/usr/bin:/bin",
        "HOME": str(home),
        "LANG": "C.UTF-8",
    }
    environment |= {
        key: os.environ[key] for key in ("TMPDIR", "SSL_CERT_FILE") if key in os.environ
    }
    try:
        done = subprocess.run(
            [programs / "python", "journey.py"], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=RUN_WITHIN_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as late:
        return f"took longer than {RUN_WITHIN_S:g} s\n{(late.output or b'').decode()}"
    return None if done.returncode == 0 else f"exit code {done.returncode}\n{done.stdout}"


def pip(*arguments: str | Path) -> None:
    """Run our own pip, which says something only if it fails."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=INSTALL_WITHIN_S,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stdout)


def of_checkout(requirement: str, wheel: Path) -> str:
    """Return a requirement. For headrace it names the wheel with the same extras, as old pips know
    no constraint for it.
    """
    return re.sub(
        r"^headrace(\[[^]]*\])?$", lambda found: f"{found[0]} @ {wheel.as_uri()}", requirement
    )


def run(name: str, wheel: Path, work: Path) -> str | None:
    """Make the environment of a journey and run it there. Return the output of the journey or of
    pip if it failed."""
    environment = work / f"{name}-environment"
    began = time.monotonic()
    try:
        venv.create(environment, symlinks=True)  # without pip: nobody declares that
        needed = [of_checkout(requirement, wheel) for requirement in declared(name)]
        pip("--python", environment / "bin" / "python", "install", "-q", *needed)
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        return str(error)
    installed = time.monotonic()
    failed = play(name, work / name, environment / "bin")
    shutil.rmtree(environment)
    seconds = (
        f"installed in {installed - began:.0f} s, ran for {time.monotonic() - installed:.0f} s"
    )
    print(f"{name}: {seconds}, {'FAILED' if failed else 'arrived'}", flush=True)
    return failed


def main(wanted: list[str]) -> int:
    """Run the journeys of these names or all, some at once, and return an exit code."""
    if unknown := set(wanted) - set(journeys()):
        print(f"no journey: {', '.join(unknown)}; there are {', '.join(journeys())}")
        return 2
    with (
        tempfile.TemporaryDirectory(prefix="journeys-") as folder,
        ThreadPoolExecutor(AT_ONCE) as pool,
    ):
        work = Path(folder)
        pip("wheel", "-q", "--no-deps", "--wheel-dir", work, ROOT)
        (wheel,) = work.glob("*.whl")
        runs = {name: pool.submit(run, name, wheel, work) for name in wanted or journeys()}
        failed = {
            name: said for name, future in runs.items() if (said := future.result()) is not None
        }
    for name, said in failed.items():
        print(f"\n== {name}\n{said}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
