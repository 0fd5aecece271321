"""Passwords that rotate, rights that are taken and given back, and providers that raise, block or
stream."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.credentials import CredentialProvider, StreamingCredentialProvider

from headrace import AsyncQueue, Queue, Worker
from headrace._net.base import connections
from tests.cluster.load import Load
from tests.support.awaiting import PATIENCE, until
from tests.support.engines import Running
from tests.support.servers import Server

USER = "app"
ROTATIONS = 4
TAKEN = [("-@all",), ("resetkeys",), ("-@write",), ("off", "resetpass")]
"""Rights that a user loses: all commands, all keys, those that write, and the user itself."""


class Secrets(CredentialProvider):
    """A provider of the secret of `USER`, with the changes that a test makes to it."""

    def __init__(self) -> None:
        self.secret, self.asked = "first", 0
        self.error: BaseException | None = None
        self.gate = threading.Event()
        self.gate.set()

    def get_credentials(self) -> tuple[str, str]:
        self.asked += 1
        secret, error = self.secret, self.error
        assert self.gate.wait(PATIENCE)
        if error is not None:
            raise error
        return USER, secret


class Streaming(Secrets, StreamingCredentialProvider):
    """A provider that gets its secrets in the background."""

    async def get_credentials_async(self) -> tuple[str, str]:
        return self.get_credentials()

    def on_next(self, callback: Any) -> None:
        """Unused, because each connection asks when it is made."""

    def on_error(self, callback: Any) -> None:
        """Unused, like `on_next`."""

    def is_streaming(self) -> bool:
        return True


@pytest.fixture
def admin(own: Server) -> Iterator[redis.Redis]:
    """The operator of a server that lets `USER` do everything."""
    with redis.Redis(unix_socket_path=own.path, socket_timeout=PATIENCE) as admin:
        allow(admin, "first")
        yield admin


def allow(admin: redis.Redis, secret: str) -> None:
    admin.execute_command(
        "ACL", "SETUSER", USER, "on", "resetpass", f">{secret}", "~*", "&*", "+@all"
    )


def cut(admin: redis.Redis) -> None:
    """End the connections of `USER`, as some services do when a password changes."""
    admin.client_kill_filter(user=USER)


def client_of(own: Server, provider: CredentialProvider) -> Any:
    return lambda module: module.Redis(unix_socket_path=own.path, credential_provider=provider)


@pytest.fixture(params=["sync", "async"])
def call(request: pytest.FixtureRequest, own: Server) -> Iterator[Any]:
    """Runs a method of a queue with a provider, in a thread of its own, and returns the future of
    its answer."""
    made: list[Any] = []
    runner = asyncio.Runner() if request.param == "async" else None
    thread = ThreadPoolExecutor(1)

    def run(provider: CredentialProvider, method: str, *args: Any, **options: Any) -> Any:
        def now() -> Any:
            if not made:
                client = client_of(own, provider)(redis.asyncio if runner else redis)
                made.append((AsyncQueue if runner else Queue)("q", client=client))
            answer = getattr(made[0], method)(*args, **options)
            return answer if runner is None else runner.run(waited(answer))

        return thread.submit(now)

    async def waited(answer: Any) -> Any:
        return await answer

    yield run
    if made:
        run(None, "close").result(PATIENCE)  # type: ignore[arg-type]
    if runner is not None:
        thread.submit(runner.close).result(PATIENCE)
    thread.shutdown()


@pytest.mark.parametrize("kind", [Secrets, Streaming])
def test_a_call_waits_for_the_new_secret(
    call: Any, admin: redis.Redis, kind: type[Secrets]
) -> None:
    """The server has the secret before the provider. Each attempt asks the provider anew."""
    secrets = kind()
    assert call(secrets, "enqueue", b"x").result(PATIENCE).added
    allow(admin, "second")
    cut(admin)
    asked, adding = secrets.asked, call(secrets, "enqueue", b"x")
    until(lambda: secrets.asked >= asked + 2 or adding.done(), "a second try")
    assert not adding.done()
    secrets.secret = "second"
    assert adding.result(PATIENCE).added
    assert call(secrets, "counts").result(PATIENCE).enqueued == 2


def test_the_first_secret_has_to_be_right(call: Any, admin: redis.Redis) -> None:
    """A server that never accepted the secret is not waited for."""
    secrets = Secrets()
    secrets.secret = "wrong"
    with pytest.raises(redis.AuthenticationError):
        call(secrets, "enqueue", b"x").result(PATIENCE)
    assert secrets.asked == 1


@pytest.mark.parametrize("rule", TAKEN[:-1])
def test_a_call_that_lacks_a_right_raises_at_once(
    call: Any, admin: redis.Redis, rule: tuple[str, ...]
) -> None:
    """Nothing has happened. The call works when the right is there."""
    secrets = Secrets()
    call(secrets, "enqueue", b"x").result(PATIENCE)
    admin.execute_command("ACL", "SETUSER", USER, *rule)
    with pytest.raises(redis.ResponseError, match=r"(?i)permission|ACL|can't run"):
        call(secrets, "enqueue", b"x").result(PATIENCE)
    allow(admin, "first")
    assert call(secrets, "enqueue", b"x").result(PATIENCE).added
    assert call(secrets, "counts").result(PATIENCE).waiting == 2


def denials(admin: redis.Redis) -> int:
    """Return how often the server refused something."""
    return sum(int(one["count"]) for one in admin.acl_log(count=100))


def test_a_provider_that_raises(call: Any, admin: redis.Redis) -> None:
    """The provider's error counts as one of authentication. The first is raised, and later ones are
    waited out."""
    secrets = Secrets()
    secrets.error = RuntimeError("no token")
    with pytest.raises(
        redis.AuthenticationError,
        match="the credential provider has failed: RuntimeError: no token",
    ):
        call(secrets, "enqueue", b"x").result(PATIENCE)
    secrets.error = None
    call(secrets, "enqueue", b"x").result(PATIENCE)
    secrets.error = RuntimeError("no token")
    cut(admin)
    asked, adding = secrets.asked, call(secrets, "enqueue", b"x")
    until(lambda: secrets.asked >= asked + 2 or adding.done(), "a second try")
    assert not adding.done()
    secrets.error = None
    assert adding.result(PATIENCE).added
    assert call(secrets, "counts").result(PATIENCE).enqueued == 2


def test_a_provider_that_blocks(
    call: Any, admin: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call ends within its bound whatever its provider does. The provider is asked once
    meanwhile."""
    secrets = Secrets()
    call(secrets, "enqueue", b"x").result(PATIENCE)
    secrets.gate.clear()
    cut(admin)
    asked = secrets.asked
    with pytest.raises(redis.TimeoutError):
        call(secrets, "enqueue", b"x", timeout=0.5).result(PATIENCE)
    late, original = list[Exception](), connections.late
    monkeypatch.setattr(connections, "CREDENTIALS_WITHIN_S", 0.05)
    monkeypatch.setattr(connections, "late", lambda: late.append(made := original()) or made)
    adding = call(secrets, "enqueue", b"x")
    until(lambda: len(late) >= 3, "tries")
    assert secrets.asked == asked + 1
    secrets.gate.set()
    assert adding.result(PATIENCE).added
    assert call(secrets, "counts").result(PATIENCE).enqueued == 2


def test_a_provider_that_blocks_does_not_hold_up_the_loop(own: Server, admin: redis.Redis) -> None:
    secrets = Secrets()
    secrets.gate.clear()

    async def beside() -> None:
        client = client_of(own, secrets)(redis.asyncio)
        async with AsyncQueue("q", client=client) as queue:
            adding = asyncio.create_task(queue.enqueue(b"x"))
            await asyncio.to_thread(until, lambda: secrets.asked, "a question")
            secrets.gate.set()  # from this very loop
            assert (await adding).added

    asyncio.run(asyncio.wait_for(beside(), PATIENCE))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["threads", "tasks"])
def test_work_goes_on_while_secrets_rotate(own: Server, admin: redis.Redis, kind: str) -> None:
    """No job is lost or runs twice, although the provider is late each time."""
    secrets = Secrets()
    with Load(client_of(own, secrets), ["q"], kind) as load:
        load.goes_on(20)
        for number in range(ROTATIONS):
            allow(admin, f"secret {number}")
            cut(admin)
            asked = secrets.asked
            until(lambda asked=asked: secrets.asked >= asked + 5, "tries with the old secret")
            secrets.secret = f"secret {number}"
            load.goes_on(20)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["threads", "tasks"])
@pytest.mark.parametrize("rule", TAKEN)
def test_a_worker_goes_on_when_its_rights_are_back(
    own: Server, admin: redis.Redis, kind: str, rule: tuple[str, ...]
) -> None:
    made, runs = client_of(own, Secrets()), Counter[str]()
    worker = Running(kind, client=made(redis if kind == "threads" else redis.asyncio))
    worker.handler("q", concurrency=8)(lambda job: runs.update([job.id]))
    with Queue("q", url=own.url) as queue, worker:
        for number in range(1, 4):
            queue.enqueue_many([b"x"] * 20)
            until(lambda number=number: queue.counts().completed == 20 * number, "jobs")
            if number < 3:
                before = denials(admin)
                admin.execute_command("ACL", "SETUSER", USER, *rule)
                cut(admin)
                until(lambda before=before: denials(admin) >= before + 5, "tries without rights")
                allow(admin, "first")
        assert (len(runs), set(runs.values())) == (60, {1})


def test_a_worker_that_never_had_its_rights_ends(own: Server, admin: redis.Redis) -> None:
    """The worker is configured wrongly, and waiting would hide that."""
    admin.execute_command("ACL", "SETUSER", USER, "-xreadgroup")
    worker = Worker(client=client_of(own, Secrets())(redis))
    worker.handler("q")(lambda _job: None)
    with Queue("q", url=own.url) as queue:
        queue.enqueue(b"x")
        with pytest.raises(redis.ResponseError, match=r"(?i)permission|ACL|can't run"):
            worker.run()
