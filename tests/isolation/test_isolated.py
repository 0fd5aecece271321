"""Isolated handlers run in child processes, for workers of both colours."""

from __future__ import annotations

import importlib
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tenacity import retry_if_exception_type

from headrace import (
    ConfigurationError,
    Job,
    JobFailed,
    Queue,
    Retry,
    Tasks,
    Worker,
)
from headrace.codecs import Encrypted, JSONCodec
from headrace.isolation import Isolation
from tests.isolation import app
from tests.support.awaiting import PATIENCE, until
from tests.support.engines import Running
from tests.support.facts import each
from tests.support.servers import Server

pytestmark = pytest.mark.long
ONE = Isolation(processes=1, grace_s=0.2)
NEVER = Retry(attempts=1)
LATE = Retry(wait=300)


class Work:
    """Makes workers of one kind, and runs them."""

    def __init__(self, kind: str, url: str) -> None:
        self.kind = kind
        self.url = url

    def running(self) -> Running:
        return Running(self.kind, url=self.url)

    @contextmanager
    def handling(self, function: Callable[..., Any], queue: Any = "q", **options: Any) -> Any:
        running = self.running()
        # without the adaption of bodies, as a child finds a handler by its name
        running.worker.handler(queue, **{"isolate": ONE, **options})(function)
        with running:
            yield running.worker


@pytest.fixture(params=["threads", "tasks"])
def work(request: pytest.FixtureRequest, newest: Server) -> Work:
    return Work(request.param, newest.url)


@pytest.fixture
def queue(newest: Server) -> Iterator[Queue]:
    with Queue("q", url=newest.url) as queue:
        yield queue


def alive(pid: int) -> bool:
    with suppress(ProcessLookupError, FileNotFoundError):  # it may end between the two looks
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[0]
        return state != "Z"
    return False


# -- jobs and results ------------------------------------------------------------------------------


def test_a_job_runs_in_another_process(work: Work, queue: Queue) -> None:
    with work.handling(app.pid):
        first, second = (queue.enqueue(b"").result(timeout=PATIENCE) for _ in range(2))
    assert first == second != b"%d" % os.getpid()


def test_a_coroutine_runs_in_a_child(newest: Server, queue: Queue) -> None:
    with Work("tasks", newest.url).handling(app.pid_async):
        assert queue.enqueue(b"").result(timeout=PATIENCE) != b"%d" % os.getpid()


@pytest.mark.slow
def test_payloads_and_results_travel_by_the_codec(work: Work, newest: Server) -> None:
    codec = Encrypted(JSONCodec(), {"k": b"0" * 32})
    with Queue("q", url=newest.url, codec=codec) as queue, work.handling(app.echo, queue):
        receipt = queue.enqueue({"a": [1, "ä"]}, id="x", headers={"kind": "k"})
        found = receipt.result(timeout=PATIENCE)
    assert found == {"payload": {"a": [1, "ä"]}, "id": "x", "kind": "k", "at": 1}


def test_results_of_a_typed_queue_are_of_any_type(work: Work, newest: Server) -> None:
    codec = JSONCodec(app.Point)
    with Queue("q", url=newest.url, codec=codec) as queue, work.handling(app.moved, queue):
        found: object = queue.enqueue(app.Point(3)).result(timeout=PATIENCE)
    assert found == [3, 7]


@pytest.mark.slow
def test_tasks_share_their_children(work: Work, newest: Server) -> None:
    running = work.running()
    running.worker.tasks(app.tasks, isolate=ONE)
    with Tasks("tasks", url=newest.url) as sender, running:
        sender.task(name="add")(app.add._function)
        there = Queue("tasks", url=newest.url)
        added = there.enqueue(app.add.new(2, 3).payload, headers={"kind": "add"})
        said = there.enqueue(app.shout.new("hej").payload, headers={"kind": "shout"})
        assert added.result(timeout=PATIENCE) == b"5"
        assert said.result(timeout=PATIENCE) == b'"1 HEJ"'
        done = there.enqueue(app.done_early.new(7).payload, headers={"kind": "done_early"})
        assert done.result(timeout=PATIENCE) == b"7"
        there.close()


@pytest.mark.slow
def test_jobs_of_a_batch_end_apart(work: Work, queue: Queue) -> None:
    running = work.running()
    running.worker.batch_handler("q", max_wait=0.1, isolate=ONE, retry=NEVER)(app.batch)
    queue.enqueue_many([b"good", b"bad", b"later", b"good"])
    with running:
        until(lambda: queue.counts().completed == 2 and queue.counts().dead == 1)
        until(lambda: queue.counts().delayed == 1)
    assert next(iter(queue.admin.dead())).reason == "ValueError: no b'bad'"


# -- ends ------------------------------------------------------------------------------------------

REASONS = {
    "value": "ValueError: ('bad', 3)",
    "odd": "OddError: code 7",
    "local": "Local: 'of a class that no module has'",
    "group": "ExceptionGroup: both (2 sub-exceptions); ValueError: a; "
    "FileNotFoundError: [Errno 2] b",
    "exit": "SystemExit: 3",
    "dead": "no use",
}


@pytest.mark.slow
def test_an_error_arrives_with_its_class_its_words_and_its_traceback(
    work: Work, newest: Server
) -> None:
    with (
        Queue("q", url=newest.url, tracebacks=True) as queue,
        work.handling(app.ends, queue, retry=NEVER),
    ):
        for payload, reason in REASONS.items():
            with pytest.raises(JobFailed):
                queue.enqueue(payload.encode(), id=payload).result(timeout=PATIENCE)
            state = queue.find(payload)
            assert state is not None
            assert (state.state, state.reason) == ("dead", reason)
            if payload in {"value", "odd"}:
                assert 'app.py"' in (state.traceback or "")


@pytest.mark.slow
def test_a_policy_knows_the_class_of_an_error(work: Work, queue: Queue) -> None:
    policy = Retry(wait=300, retry=retry_if_exception_type(app.OddError))
    with work.handling(app.ends, retry=policy):
        queue.enqueue(b"odd", id="odd")
        queue.enqueue(b"value", id="value")
        until(lambda: queue.counts().dead == 1 and queue.counts().delayed == 1)
    assert {one.job.id for one in queue.admin.dead()} == {"value"}


def test_verdicts_hold(work: Work, queue: Queue) -> None:
    with work.handling(app.ends):
        assert queue.enqueue(b"complete").result(timeout=PATIENCE) == b"by a verdict"
        queue.enqueue(b"later", id="later")
        until(lambda: queue.counts().delayed == 1)
        state = queue.find("later")
        assert state is not None
        assert state.reason == "not yet"


@pytest.mark.slow
def test_a_result_that_does_not_encode_is_dropped(
    work: Work, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    with work.handling(app.ends):
        receipt = queue.enqueue(b"object")
        until(lambda: queue.counts().completed == 1)
        assert receipt.result(timeout=PATIENCE) is None
    assert "result_dropped" in caplog.text


# -- misbehaviour ----------------------------------------------------------------------------------

MISBEHAVIOUR = {
    "loops_in_c": "Killed: deadline of 1 s",
    "eats": "Killed: out of memory: 1,024 MiB",
    "aborts": "Killed: signal 6",
    "exits": "Killed: exit status 0",
    "freezes": "Killed: deadline of 1 s",
    "crashes": "Killed: signal 11",
    "closes": "",
    "leaves_a_child": "Killed: exit status 3",
    "prints": "",
    "ignores": "Killed: deadline of 1 s",
    "raises_as_it_goes": "",
}


def test_each_handler_that_misbehaves_fails_its_own_job(work: Work, queue: Queue) -> None:
    """Jobs beside it, and after it, end well."""
    limits = Isolation(processes=2, memory_mb=1024, grace_s=0.2)
    for how in MISBEHAVIOUR:
        queue.enqueue(how.encode(), id=how)
        queue.enqueue_many([b"behaves"] * 5)
    with work.handling(app.misbehave, isolate=limits, deadline=1, retry=NEVER):
        until(lambda: not (queue.counts().waiting or queue.counts().leased))
        completed = queue.counts().completed
    dead = {one.job.id: one.reason for one in queue.admin.dead()}
    assert dead == {how: reason for how, reason in MISBEHAVIOUR.items() if reason}
    assert completed == 6 * len(MISBEHAVIOUR) - len(dead)


# -- steps -----------------------------------------------------------------------------------------


def test_steps_are_recorded_once(work: Work, queue: Queue, tmp_path: Path) -> None:
    path = tmp_path / "noted"
    with work.handling(app.steps, isolate=Isolation(processes=2)):
        receipt = queue.enqueue(str(path).encode(), id="run")
        until(lambda: (state := queue.find("run")) is not None and len(state.steps) == 3)
        state = queue.find("run")
        assert state is not None
        assert state.progress is not None
        assert state.progress.text == "half"
        queue.signal("run", "go", b"!")
        assert receipt.result(timeout=PATIENCE) == b"12b'!'"
    assert path.read_text("ascii") == "1\n2\n"


@pytest.mark.slow
@pytest.mark.parametrize("id", ["dies", "changes its mind"])
def test_steps_are_undone(work: Work, queue: Queue, tmp_path: Path, id: str) -> None:
    """A child that dies in an undo leaves it to the next one."""
    path = tmp_path / "noted"
    books = app.books_async if work.kind == "tasks" else app.books
    with work.handling(books, retry=Retry(attempts=2, wait=0)):
        queue.enqueue(str(path).encode(), id=id)
        until(lambda: queue.counts().present == queue.counts().dead)
    dead = [one.reason for one in queue.admin.dead()]
    assert dead == (["ValueError: no money"] if id == "dies" else [])
    assert path.read_text("ascii") == "1\n2\n-2\n-2\n-1\n"


def test_a_child_process_runs_children_of_runs(work: Work, queue: Queue) -> None:
    """They are in the slot of their parent, and in another."""
    others = work.running()
    for name in ("q/near", "far"):
        others.handler(name)(lambda job: job.payload * 2)
    with others, work.handling(app.runs_children):
        assert queue.enqueue(b"", id="i").result(PATIENCE) == b"nn ff late"


@pytest.mark.slow
def test_a_step_beside_a_wait_is_recorded_before_the_run_is_suspended(
    newest: Server, queue: Queue, tmp_path: Path
) -> None:
    path = tmp_path / "noted"
    with Work("tasks", newest.url).handling(app.steps_async):
        receipt = queue.enqueue(str(path).encode(), id="run")
        until(lambda: (state := queue.find("run")) is not None and len(state.steps) == 2)
        queue.signal("run", "go", b"!")
        assert receipt.result(timeout=PATIENCE) == b"12b'!'"
    assert path.read_text("ascii") == "1\n2\n"


@pytest.mark.slow
def test_values_of_steps_are_sealed_by_the_codec(
    newest: Server, queue: Queue, tmp_path: Path
) -> None:
    codec = Encrypted(None, {"k": b"0" * 32})
    with (
        Queue("sealed", url=newest.url, codec=codec) as sealed,
        Work("threads", newest.url).handling(app.steps, sealed),
    ):
        sealed.enqueue(str(tmp_path / "noted").encode(), id="run")
        until(lambda: (state := sealed.find("run")) is not None and len(state.steps) == 3)
        state = sealed.find("run")
        assert state is not None
        assert state.steps[0].result == 1
        with Queue("sealed", url=newest.url) as blind:
            unread = blind.find("run")
            assert unread is not None
            assert unread.steps[0].result != 1


@pytest.mark.slow
def test_a_step_that_was_never_awaited_fails_the_job(newest: Server, queue: Queue) -> None:
    with Work("tasks", newest.url).handling(app.forgets, retry=NEVER), pytest.raises(JobFailed):
        queue.enqueue(b"", id="run").result(timeout=PATIENCE)
    state = queue.find("run")
    assert state is not None
    assert "step 'first': never awaited" in (state.reason or "")


@pytest.mark.slow
def test_a_step_that_fails_beside_a_wait_fails_the_job(newest: Server, queue: Queue) -> None:
    with (
        Work("tasks", newest.url).handling(app.fails_beside_a_wait, retry=NEVER),
        pytest.raises(JobFailed),
    ):
        queue.enqueue(b"", id="run").result(timeout=PATIENCE)
    state = queue.find("run")
    assert state is not None
    assert "ValueError: beside a wait" in (state.reason or "")


@pytest.mark.slow
def test_a_replayed_run_times_out_in_its_wait(work: Work, queue: Queue, tmp_path: Path) -> None:
    """Its step ran once, and the last progress was noted at the end of the first delivery."""
    path = tmp_path / "noted"
    with work.handling(app.tells, retry=Retry(attempts=2, wait=0)), pytest.raises(JobFailed):
        queue.enqueue(str(path).encode(), id="run").result(timeout=PATIENCE)
    state = queue.find("run")
    assert state is not None
    assert state.reason == "TimeoutError: no signal 'later' has come in time"
    assert [(one.name, one.state) for one in state.steps] == [
        ("note", "done"),
        ("later", "timed out"),
    ]
    assert state.progress is not None
    assert state.progress.text == "a quarter"
    assert path.read_text("ascii") == "1\n"


@pytest.mark.slow
def test_a_thread_that_a_handler_has_left_behind_takes_no_step(work: Work, queue: Queue) -> None:
    with work.handling(app.leaves_a_thread):
        queue.enqueue(b"leave", id="first").result(timeout=PATIENCE)
        assert queue.enqueue(b"look").result(timeout=PATIENCE) == b"RunLost"
    state = queue.find("first")
    assert state is None or [one.name for one in state.steps] == ["first"]


@pytest.mark.slow
def test_a_verdict_as_a_result_ends_no_child(work: Work, queue: Queue) -> None:
    with work.handling(app.names_of_verdicts):
        first = queue.enqueue(b"").result(timeout=PATIENCE)
        assert queue.enqueue(b"odd").result(timeout=PATIENCE) is None
        assert queue.enqueue(b"").result(timeout=PATIENCE) == first


# -- children --------------------------------------------------------------------------------------


def test_a_child_is_replaced_after_its_jobs(work: Work, queue: Queue) -> None:
    limits = Isolation(processes=1, recycle_jobs=5)
    with work.handling(app.pid, isolate=limits):
        receipts = queue.enqueue_many([b""] * 30)
        pids = {queue.result(one.id, timeout=PATIENCE) for one in receipts}
        assert queue.counts().completed == 30
    assert 5 <= len(pids) <= 9
    until(lambda: not any(alive(int(pid or 0)) for pid in pids))


@pytest.mark.slow
def test_a_child_that_has_grown_is_replaced(work: Work, queue: Queue) -> None:
    with work.handling(app.grows, isolate=Isolation(processes=1, recycle_mb=70)):
        receipts = queue.enqueue_many([b""] * 3)
        pids = {queue.result(one.id, timeout=PATIENCE) for one in receipts}
    assert len(pids) == 3


@pytest.mark.slow
def test_the_cancel_of_a_running_job_kills_its_child(
    work: Work, queue: Queue, tmp_path: Path
) -> None:
    path = tmp_path / "pid"
    with work.handling(app.waits):
        queue.enqueue(str(path).encode(), id="long")
        until(lambda: path.exists() and path.read_text("ascii"))
        assert queue.cancel("long")
        until(lambda: not alive(int(path.read_text("ascii"))))
        with suppress(FileNotFoundError):
            path.unlink()
        queue.enqueue(str(path).encode(), id="next")  # the only slot is free
        until(path.exists)
        queue.cancel("next")


@pytest.mark.slow
def test_no_child_outlives_a_worker_that_is_killed(newest: Server, tmp_path: Path) -> None:
    path = tmp_path / "pid"
    program = (
        "from headrace import Worker\nfrom headrace.isolation import Isolation\n"
        "from tests.isolation import app\n"
        f"worker = Worker({newest.url!r})\n"
        "worker.handler('q', isolate=Isolation(processes=2))(app.loops_for_ever)\n"
        "if __name__ == '__main__':\n    worker.run()\n"
    )
    script = tmp_path / "program.py"
    script.write_text(program, "utf-8")
    with Queue("q", url=newest.url) as queue:
        queue.enqueue(str(path).encode())
        started = subprocess.Popen(
            [sys.executable, str(script)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        try:
            until(lambda: path.exists() and path.read_text("ascii"))
        finally:
            started.send_signal(signal.SIGKILL)
            started.wait()
        until(lambda: not alive(int(path.read_text("ascii"))))


def fork_servers() -> set[int]:
    """Return the processes that start children for this one."""
    found = Path(f"/proc/self/task/{os.getpid()}/children").read_text("ascii").split()
    return {
        int(pid) for pid in found if b"_isolation.warm" in Path(f"/proc/{pid}/cmdline").read_bytes()
    }


@pytest.mark.slow
def test_a_fork_server_ends_with_its_worker(work: Work, queue: Queue) -> None:
    """Another one begins if it dies before, and its children with it."""
    before = fork_servers()
    with work.handling(app.pid):
        first = queue.enqueue(b"").result(timeout=PATIENCE)
        (server,) = fork_servers() - before
        os.kill(server, signal.SIGKILL)
        until(lambda: not alive(int(first or 0)))
        assert queue.enqueue(b"").result(timeout=PATIENCE) not in (None, first)
        assert len(fork_servers() - before) == 1
    assert fork_servers() <= before


@pytest.mark.slow
def test_log_records_reach_the_parent(
    work: Work, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    with work.handling(app.logs):
        queue.enqueue(b"", id="one").result(timeout=PATIENCE)
        until(lambda: "in a child: one" in caplog.text)
    record = next(one for one in caplog.records if "in a child" in one.message)
    assert (record.name, record.levelno) == ("tests.app", logging.WARNING)


HANDLE = (
    "import os\nPID = os.getpid()\n\n\ndef handle(job):\n    return b'%d' % (PID == os.getpid())\n"
)
OPENED = {
    "nothing": "",
    "a thread": "import threading\n"
    "threading.Thread(target=threading.Event().wait, args=(60,), daemon=True).start()\n",
    "a socket": "import socket\nPAIR = socket.socketpair()\n",
}


@pytest.mark.slow
@pytest.mark.parametrize("opened", OPENED)
def test_a_module_is_loaded_once_unless_copies_could_not_use_it(
    newest: Server,
    queue: Queue,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    opened: str,
) -> None:
    """A child has a module from the fork server, or loads one with threads or sockets itself."""
    name = f"module_with_{opened.replace(' ', '_')}"
    (tmp_path / f"{name}.py").write_text(OPENED[opened] + HANDLE, "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module(name)
    try:
        with Work("threads", newest.url).handling(module.handle):
            own = queue.enqueue(b"").result(timeout=PATIENCE)
    finally:
        for one in getattr(module, "PAIR", ()):
            one.close()
        del sys.modules[name]
    assert own == b"%d" % (opened != "nothing")


# -- what is refused -------------------------------------------------------------------------------


def refusals() -> dict[str, tuple[Any, dict[str, Any], str]]:
    def local(job: Job) -> None: ...

    return {
        "local": (local, {}, "define it at the top of its module"),
        "lambda": (lambda job: None, {}, "define it at the top of its module"),
        "partial": (partial(app.nothing), {}, "finds a handler by its name"),
        "method": (app.BOUND.double, {}, "finds a handler by its name"),
        "persistent": (app.pid, {"persistent": True}, "never ends"),
        "codec": (app.pid, {"codec": Unsendable()}, "cannot pickle"),
    }


class Unsendable(JSONCodec[Any]):
    def __reduce__(self) -> Any:
        raise TypeError("cannot pickle it")


@pytest.mark.parametrize("case", refusals())
def test_what_can_not_be_isolated_is_refused(newest: Server, case: str) -> None:
    function, options, words = refusals()[case]
    with ExitStack() as stack, pytest.raises((ConfigurationError, TypeError), match=words):
        stack.enter_context(Work("threads", newest.url).handling(function, **options))


@each(
    ("options", "words"),
    [
        ({"processes": 0}, "processes=0"),
        ({"recycle_jobs": "9"}, "recycle_jobs must be an int"),
        ({"memory_mb": 1}, "memory_mb=1: give at least 64"),
        ({"recycle_mb": "a"}, "recycle_mb must be a number"),
        ({"start": "fork"}, "a fork copies locks"),
        ({"grace_s": -1}, "grace_s=-1"),
    ],
)
def test_settings_are_checked(options: dict[str, Any], words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        Isolation(**options)


def test_isolate_takes_true_or_settings(newest: Server) -> None:
    with pytest.raises(TypeError, match="isolate must be True"):
        Worker(newest.url).handler("q", isolate="yes")  # type: ignore[arg-type]
