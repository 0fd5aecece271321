"""Every action does what it says, reports its true outcome, and is refused to users without the
right."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import pytest
import redis
from attrs import frozen

from headrace import ConfigurationError, Flow, NewJob, Queue, Worker
from headrace.codecs import (
    Compressed,
    DirectoryStore,
    Encrypted,
    JSONCodec,
    MsgpackCodec,
    Offloaded,
    PydanticCodec,
)
from headrace.console import actions
from headrace.console.web.access import Rights
from headrace.inspect import reason_key
from headrace.web import ACTIONS
from tests.support.awaiting import until
from tests.support.servers import Server
from tests.support.steps import LONG, viewing, waiting_run
from tests.web.conftest import ORIGIN, text


def dead(queue: Queue, *reasons: str) -> None:
    """Make a dead letter of each reason, with the ids i0, i1 and so on."""
    for number, reason in enumerate(reasons):
        queue.enqueue(b"x", id=f"i{number}")
        queue.lease().dead_letter(reason)


def test_pause_and_resume(site: Any, queue: Queue) -> None:
    queue.enqueue(b"x")
    one = site()
    assert one.done("pause", queue="q") == "The queue is paused."
    assert queue.admin.paused()
    assert one.done("pause", queue="q") == "The queue was paused already."
    assert one.done("resume", queue="q") == "Jobs are handed out again."
    assert not queue.admin.paused()


def test_enqueue(site: Any, queue: Queue) -> None:
    with Queue("q", url=queue._address.url, priorities=3) as levelled:
        levelled.enqueue(b"x", id="first", priority=2)
        one = site()
        assert (
            one.done("enqueue", queue="q", payload="ä", id="a", priority="1", delay="")
            == "Job a was enqueued."
        )
        assert (
            one.done("enqueue", queue="q", payload="b", id="a", delay="60")
            == "Job a was there already."
        )
        job = levelled.find("a").job
        assert (job.payload, job.priority) == ("ä".encode(), 1)
        assert "delay 'x': give a number" in text(
            one.post("enqueue", queue="q", payload="b", delay="x")
        )
        assert one.post("enqueue", queue="q", payload="b", delay="nan").status_code == 400
        assert one.post("enqueue", queue="q", payload="b", id="\n").status_code == 400
        assert levelled.counts().enqueued == 2


PRETTY = '{\r\n  "a": 1\r\n}'  # as a browser sends the text of the form back


@pytest.mark.parametrize("shards", [1, 3])
def test_enqueue_again(site: Any, newest: Server, shards: int) -> None:
    """The bytes are the same without an edit. Headers, priority, key and cost are kept, and
    internal headers are not.
    """
    with Queue("q", url=newest.url, priorities=3, history=10, shards=shards) as queue:
        traced = {
            "tenant": "ada",
            "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        }
        queue.enqueue(b'{"a":1}', id="a", headers=traced, priority=1, key="k", cost=2.5)
        queue.lease().complete()
        one = site()
        form = one.get("job", queue="q", id="a", ask="again").text
        assert re.search(r'<textarea name="payload"[^>]*>\n{\n  &#34;a&#34;: 1\n}</textarea>', form)
        assert (
            one.done("enqueue", queue="q", again="a", payload=PRETTY, id="b")
            == "Job b was enqueued."
        )
        job = queue.find("b").job
        assert (job.payload, job.priority, job.key, job.cost) == (b'{"a":1}', 1, "k", 2.5)
        assert (job.headers["tenant"], "traceparent" in job.headers) == ("ada", False)
        assert (
            one.done("enqueue", queue="q", again="a", payload='{"a": 2}', id="c")
            == "Job c was enqueued."
        )
        assert queue.find("c").job.payload == b'{"a": 2}'
        assert (
            one.done("enqueue", queue="q", again="a", payload="x", id="c")
            == "Job c was there already."
        )
        assert "was enqueued" in one.done("enqueue", queue="q", again="a")
        assert [state.job.payload for state in queue.admin.waiting()].count(b'{"a":1}') == 2
        refused = one.post("enqueue", queue="q", again="gone", payload="x")
        assert (refused.status_code, "not known any more" in text(refused)) == (400, True)
        assert (
            site(access=lambda _: {"redrive"}).post("enqueue", queue="q", again="a").status_code
            == 403
        )
        assert "Enqueue again" not in text(
            site(access=lambda _: "read").get("job", queue="q", id="a")
        )


@pytest.mark.parametrize("payload", [b"\xff\xfe", b"a\r\nb", b"s3cret", b"x" * 100_000])
def test_a_payload_that_is_not_shown_whole_is_not_edited(
    site: Any, queue: Queue, payload: bytes
) -> None:
    """Bytes, control characters, redacted and large payloads can't be edited. The job is enqueued
    again with its bytes.
    """
    queue.enqueue(payload, id="a")
    queue.lease().dead_letter("why")
    one = site(redact=lambda what, text, job: text.replace("s3cret", "***"))
    form = one.get("job", queue="q", id="a", ask="again").text
    assert "can't be edited here" in form
    assert "<textarea" not in form.partition("Enqueue again")[2]
    assert one.done("enqueue", queue="q", again="a", id="b") == "Job b was enqueued."
    assert queue.find("b").job.payload == payload


@frozen
class Mail:
    """A payload of a type whose text can't be edited."""

    to: str


KEYS = {"k": bytes(32)}
# its payload; a text, and the payload that it means
CODECS: dict[str, tuple[Callable[[Path], Any], Any, str, Any]] = {
    "json": (lambda _: JSONCodec(), {"a": 1}, '{"a": 2}', {"a": 2}),
    "a json string": (lambda _: JSONCodec(), "x", '"y"', "y"),
    "msgpack": (lambda _: MsgpackCodec(), {"a": 1}, '{"a": 2}', {"a": 2}),
    "of a type": (lambda _: MsgpackCodec(Mail), Mail("ada"), '{"to": "ben"}', Mail("ben")),
    "pydantic": (lambda _: PydanticCodec(list[int]), [1], "[2]", [2]),
    "sealed": (lambda _: Encrypted(None, KEYS), b"one", "two", b"two"),
    "offloaded": (
        lambda path: Offloaded(JSONCodec(), DirectoryStore(path), over=0),
        [1],
        "[2]",
        [2],
    ),
    "all": (
        lambda path: Encrypted(
            Offloaded(Compressed(MsgpackCodec()), DirectoryStore(path), over=0), KEYS
        ),
        [1],
        "[2]",
        [2],
    ),
}


@pytest.fixture
def extras() -> None:
    """Skip without the packages of these codecs."""
    for extra in ("pydantic", "zstandard", "cryptography"):
        pytest.importorskip(extra)


@pytest.mark.usefixtures("extras")
@pytest.mark.parametrize("name", CODECS)
def test_payloads_are_typed_for_the_codec(
    site: Any, newest: Server, tmp_path: Path, name: str
) -> None:
    """A job is enqueued, enqueued again, and mended. The copy has a payload of its own. Bad text
    changes nothing."""
    make, first, typed, meant = CODECS[name]
    codec: Any = make(tmp_path)
    with Queue("q", url=newest.url, codec=codec) as queue:
        queue.enqueue(first, id="a")
        one = site(codecs={"q": codec})
        page = one.get("job", queue="q", id="a", ask="again").text
        plain = isinstance(first, (bytes, dict, list))
        assert ("<textarea" in page.partition("Enqueue again")[2]) == plain
        shown = (
            unescape(re.findall(r"<textarea[^>]*>\n(.*?)</textarea>", page, re.DOTALL)[0])
            if plain
            else ""
        )
        fields = {
            "queue": "q",
            "again": "a",
            **({"payload": shown.replace("\n", "\r\n")} if plain else {}),
        }
        assert one.done("enqueue", id="same", **fields) == "Job same was enqueued."
        assert "was enqueued" in one.done("enqueue", **fields)
        assert (
            one.done("enqueue", queue="q", again="a", payload=typed, id="edited")
            == "Job edited was enqueued."
        )
        assert (
            one.done("enqueue", queue="q", payload=typed, id="typed") == "Job typed was enqueued."
        )
        if not isinstance(first, bytes):
            refused = one.post("enqueue", queue="q", payload="{")
            assert (refused.status_code, "codec does not take that payload" in text(refused)) == (
                400,
                True,
            )
        leases = queue.lease_many(9)
        assert [lease.job.payload for lease in leases] == [first, first, first, meant, meant]
        for lease in leases[:-1]:
            assert lease.complete()
        leases[-1].dead_letter("no")
        assert one.done("redrive", queue="q", id="typed", payload=typed).endswith(
            "with another payload."
        )
        lease = queue.lease()
        assert lease.job.payload == meant
        assert lease.complete()
        queue.admin.schedule("s", first, every=3600)
        one.done("schedule", queue="q", name="s", every="60")
        one.done("run_schedule", queue="q", name="s")
        one.done("schedule", queue="q", name="s", every="60", payload=typed)
        one.done("run_schedule", queue="q", name="s")
        leases = queue.lease_many(9)
        assert [lease.job.payload for lease in leases] == [first, meant]
        assert queue.complete_many(leases) == [True, True]
        assert not list(tmp_path.iterdir())


def test_a_payload_in_a_store_has_one_job(site: Any, newest: Server, tmp_path: Path) -> None:
    """Without the codec it is not enqueued again, because the job that ends first would delete the
    payload of both."""
    with Queue(
        "q", url=newest.url, codec=Offloaded(None, DirectoryStore(tmp_path), over=0)
    ) as queue:
        queue.enqueue(b"x", id="a")
        refused = site().post("enqueue", queue="q", again="a")
        assert (refused.status_code, "give the codec to app(codecs=" in text(refused)) == (
            400,
            True,
        )
        assert queue.counts().enqueued == 1


@pytest.mark.usefixtures("extras")
def test_a_signal_is_written_by_the_codec(site: Any, newest: Server) -> None:
    codec = Encrypted(JSONCodec(), KEYS)
    with Queue("q", url=newest.url, codec=codec) as queue:
        queue.enqueue([1], id="a")
        done = site(codecs={"q": codec}).done(
            "signal", queue="q", id="a", signal="go", data='{"by": "ada"}'
        )
        assert done == "The signal is kept until the job waits for it."
        assert queue.lease().job.wait_for("go") == {"by": "ada"}


def test_a_job_of_a_flow_is_not_enqueued_again(site: Any, newest: Server) -> None:
    with Flow("shop", url=newest.url) as flow:
        flow.stage("order")(lambda job: None)
        flow.start(b"x", id="r1")
        one = site()
        assert "Enqueue again" not in text(one.get("job", queue="shop/order", id="r1"))
        refused = one.post("enqueue", queue="shop/order", again="r1")
        assert (refused.status_code, "start another run" in text(refused)) == (400, True)


def test_redrive_from_a_step(site: Any, queue: Queue) -> None:
    """The run forgets that step and all later ones, and the page of the job follows."""
    queue.enqueue(b"x", id="a")
    lease = queue.lease()
    assert (lease.job.step("charge", lambda: 1), lease.job.step("ship", lambda: 2)) == (1, 2)
    lease.dead_letter("why")
    one = site()
    shown = one.get("job", queue="q", id="a", ask="step").text
    assert '<option value="charge">charge</option><option value="ship">ship</option>' in shown
    refused = one.post("redrive", queue="q", id="a", step="none", page="job")
    assert refused.status_code == 400
    answer = one.post("redrive", queue="q", id="a", step="ship", page="job")
    assert "job?queue=q&id=a" in answer.headers["location"]
    assert [step.name for step in queue.find("a").steps] == ["charge"]
    assert queue.counts().waiting == 1


def test_cancel_expire_reschedule(site: Any, queue: Queue) -> None:
    queue.enqueue_many([NewJob(b"x", id="a"), NewJob(b"x", id="late", delay=LONG)])
    lease = queue.lease()
    one = site()
    assert one.done("expire", queue="q", id="a") == "Its lease was ended: the job is in front."
    assert not lease.renew()
    assert one.done("expire", queue="q", id="a") == "The job is not leased any more."
    assert (
        one.done("reschedule", queue="q", id="late", delay="0") == "The job has another due time."
    )
    assert queue.counts().waiting == 1
    assert one.done("cancel", queue="q", id="a") == "The job was cancelled."
    assert one.done("cancel", queue="q", id="a") == "The job is not there any more, or dead."
    assert one.post("cancel", queue="q").status_code == 400


def test_signal(site: Any, queue: Queue) -> None:
    """The page of a job has a form for each wait, where the user may signal."""
    waiting_run(queue, "a")
    assert "Signal approved" in text(site().get("job", queue="q", id="a"))
    assert "Signal approved" not in text(
        site(access=lambda _: "read").get("job", queue="q", id="a")
    )
    assert (
        site(access=lambda _: {"cancel"})
        .post("signal", queue="q", id="a", signal="approved")
        .status_code
        == 403
    )
    one = site()
    assert one.post("signal", headers={}, queue="q", id="a", signal="approved").status_code == 403
    kept = one.done("signal", queue="q", id="a", signal="later", data="yes")
    assert kept == "The signal is kept until the job waits for it."
    assert (
        one.done("signal", queue="q", id="a", signal="approved", data='{"by": "ada"}')
        == "The job goes on."
    )
    assert (
        one.done("signal", queue="q", id="a", signal="approved")
        == "The job has this signal already."
    )
    assert one.post("signal", queue="q", id="a").status_code == 400
    job = queue.lease().job
    assert (job.wait_for("approved"), job.wait_for("later")) == ({"by": "ada"}, "yes")


def test_mend_a_dead_letter(site: Any, queue: Queue) -> None:
    """The payload is replaced and the job goes back. Browsers send each line end as CRLF."""
    dead(queue, "bad", "bad")
    one = site()
    done = one.done("redrive", queue="q", id="i1", payload="a\r\nä")
    assert done == "1 job went back to the queue, with another payload."
    assert [state.job.payload for state in queue.admin.waiting()] == ["a\nä".encode()]
    for fields in ({"payload": "x"}, {"payload": "x", "id": "i1"}):
        assert one.post("redrive", queue="q", **fields).status_code == 400
    assert queue.counts().dead == 1


def test_redrive_one_a_reason_or_all(site: Any, queue: Queue) -> None:
    dead(queue, "timeout 1", "timeout 2", "other", "last")
    one = site()
    assert (
        one.done("redrive", queue="q", group=reason_key("timeout 9"))
        == "2 jobs went back to the queue."
    )
    assert [state.job.id for state in queue.admin.waiting()] == ["i0", "i1"]
    assert one.done("redrive", queue="q", id="i3") == "1 job went back to the queue."
    assert one.post("redrive", queue="q", group=reason_key("timeout 9")).status_code == 400
    assert queue.counts().dead == 1
    assert one.done("redrive", queue="q") == "1 job went back to the queue."


def test_schedules(site: Any, queue: Queue) -> None:
    """A schedule is run now, paused, resumed, changed and removed. Other fields stay, and bad input
    changes nothing."""
    with Queue("q", url=queue._address.url, priorities=3) as levelled:
        given: dict[str, Any] = {"headers": {"kind": "k"}, "priority": 2, "cost": 2.5}
        levelled.admin.schedule("s", b'{"a":1}', every=3600, **given)
        one = site()
        fields = {"queue": "q", "name": "s"}
        assert one.done("run_schedule", **fields).startswith("Job s@")
        assert one.done("pause_schedule", **fields) == "The schedule is paused."
        assert (
            one.done("pause_schedule", **fields) == "The schedule was paused already, or is gone."
        )
        shown = one.get("schedule", **fields, ask="change").text
        payload = unescape(
            re.findall(r"<textarea[^>]*>\n(.*?)</textarea>", shown, re.DOTALL)[0]
        ).replace("\n", "\r\n")
        cron = {
            "cron": "0 3 * * *",
            "timezone": "Europe/Berlin",
            "missed": "skip",
            "payload": payload,
        }
        for bad in (
            {"every": "60", "cron": "* * * * *"}, {"every": ""}, {"every": "x"}, {"cron": "wrong"}, {"every": "0"},
            {"cron": "* * * * *", "timezone": "Mars"}, {"every": "60", "missed": "often"},
            {"name": "none", "every": "9"},
        ):  # fmt: skip
            assert one.post("schedule", **{**fields, **bad}).status_code == 400, bad
        assert levelled.admin.schedules()[0].every == 3600
        assert one.done("schedule", **fields, **cron) == "The schedule was changed."
        (schedule,) = levelled.admin.schedules()
        assert (schedule.cron, schedule.timezone, schedule.missed) == (
            "0 3 * * *",
            "Europe/Berlin",
            "skip",
        )
        assert schedule.paused
        assert one.done("resume_schedule", **fields) == "The schedule goes on."
        one.done("run_schedule", **fields)
        one.done("schedule", **fields, every="90", payload="a\r\nb")
        one.done("run_schedule", **fields)
        jobs = [state.job for state in levelled.admin.waiting()]
        assert [job.payload for job in jobs] == [b'{"a":1}', b'{"a":1}', b"a\nb"]
        assert {(job.headers["kind"], job.priority, job.cost) for job in jobs} == {("k", 2, 2.5)}
        assert one.done("unschedule", **fields) == "The schedule was removed."
        assert one.done("unschedule", **fields) == "There is no such schedule any more."
        assert (
            site(access=lambda _: {"run_schedule"}).post("pause_schedule", **fields).status_code
            == 403
        )


def test_a_cause_in_several_queues(
    site: Any, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is tried, then all are redriven or removed queue by queue. Each removal asks for the name
    of its queue."""
    with Queue("r", url=queue._address.url) as other:
        for where in (queue, other):
            dead(where, "timeout 1", "timeout 2", "other")
        one, group = site(), reason_key("timeout 9")
        answer = one.post("redrive", queue="r", id="i1", group=group)
        shown = text(one.get(str(answer.url.join(answer.headers["location"]))))
        assert "Sent again i1 waiting" in shown
        assert "1 job went back to the queue." in shown
        monkeypatch.setattr(actions, "STEPS_WITHIN_S", 0)
        fields = {"queue": "q", "rest": "r", "state": "dead", "group": group, "total": "3"}
        between = one.post("redrive", **fields)
        page = one.get(str(between.url.join(between.headers["location"])))
        assert "2 of 2 went back to the queue" in text(page)
        assert "data-onward" in page.text
        hidden = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', page.text))
        assert hidden["queue"] == "r"
        assert "3 of 3 went back to the queue" in one.done("redrive", **hidden)
        assert (queue.counts().dead, other.counts().dead) == (1, 1)
        fields |= {"group": reason_key("other"), "confirm": "q"}
        between = one.post("purge_dead", **fields)
        page = one.get(str(between.url.join(between.headers["location"])))
        assert "data-onward" not in page.text
        assert "Type <code>r</code> to confirm" in page.text
        hidden = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', page.text))
        assert one.post("purge_dead", **hidden).status_code == 400
        assert "2 of 2 were removed" in one.done("purge_dead", **hidden, confirm="r")
        only = site(access=lambda _: {"q": {"redrive"}})
        assert only.post("redrive", queue="r", state="dead", group=group).status_code == 403
        assert (queue.counts().dead, other.counts().dead) == (0, 0)


def test_dead_letters_are_removed(site: Any, queue: Queue) -> None:
    dead(queue, "timeout 1", "timeout 2", "other")
    one = site()
    group = reason_key("timeout 9")
    assert "Type the queue" in text(one.post("purge_dead", queue="q", group=group))
    assert one.done("purge_dead", queue="q", group=group, confirm="q") == "2 dead letters removed."
    # an id beside it is no confirmation
    everything = one.post("purge_dead", queue="q", state="dead", id="i2")
    assert "Type the queue" in text(everything)
    assert queue.counts().dead == 1
    assert one.done("purge_dead", queue="q", id="i2") == "1 dead letter removed."
    assert queue.counts().dead == 0


@pytest.mark.parametrize("shards", [1, 3])
def test_ticked_rows(site: Any, newest: Server, shards: int) -> None:
    """The action takes the ticked jobs that still exist. It never takes all jobs, and asks for the
    queue's name."""
    one = site()
    with Queue("t", url=newest.url, shards=shards) as queue:
        queue.enqueue_many(
            [NewJob(b"x", id=f"i{n}") for n in range(4)] + [NewJob(b"x", id="<late>", delay=LONG)]
        )
        assert one.get("queue", name="t").text.count('form="ticked"') == 4
        fields = {
            "queue": "t",
            "action": "cancel",
            "state": "waiting",
            "id": ["i0", "i2", "i0", "none"],
        }
        assert "Type the queue" in text(one.post("ticked", **fields))
        for wrong in (
            {"id": []},
            {"id": [""]},
            {"id": [f"i{n}" for n in range(26)]},
            {"action": "expire"},
        ):
            assert "Nothing was done" in text(
                one.post("ticked", **{**fields, "confirm": "t", **wrong})
            ), wrong
        assert one.post("ticked", **{**fields, "confirm": "t", "action": "drop"}).status_code == 404
        assert queue.counts().cancelled == 0
        done = one.post("ticked", **fields, confirm="t", kind="k", cursor="")
        assert done.headers["location"].startswith("../queue?name=t&outcome=")
        assert "&state=waiting&kind=k" in done.headers["location"]
        shown = unescape(one.get(str(done.url.join(done.headers["location"]))).text)
        assert "2 of 3 were cancelled. 1 was not there any more, or dead." in shown
        assert one.done(
            "ticked", **{**fields, "id": "<late>", "state": "delayed", "confirm": "t"}
        ) == ("1 of 1 were cancelled.")
        assert (queue.counts().cancelled, queue.counts().waiting) == (3, 2)


def test_ticked_dead_letters(site: Any, queue: Queue) -> None:
    """They are redriven or removed, in the list of their queue and of their cause."""
    dead(queue, *["timeout 1"] * 5)
    one, group = site(), reason_key("timeout 9")
    assert one.get("queue", name="q", state="dead").text.count('form="ticked"') == 5
    assert one.get("dead", group=group).text.count('form="ticked"') == 5
    fields = {"queue": "q", "group": group}
    assert "Tick 1 to 25 rows" in text(one.post("ticked", **fields, action="redrive"))
    queue.enqueue(b"x", id="i9")
    said = one.done("ticked", **fields, action="redrive", id=["i0", "i1", "i9"])
    assert (
        said == "2 of 3 went back to the queue. 1 was not dead any more, or its id is taken again."
    )
    assert "Type the queue" in text(one.post("ticked", **fields, action="purge_dead", id=["i2"]))
    said = one.done("ticked", **fields, action="purge_dead", id=["i2", "i3", "i4"], confirm="q")
    assert said == "3 of 3 were removed."  # on a page of a cause that has no letters any more
    assert (queue.counts().dead, queue.counts().waiting) == (0, 3)


def test_ticked_runs_that_wait(site: Any, newest: Server) -> None:
    with Queue("q", url=newest.url) as queue:
        waiting_run(queue, "run")
        one = site()
        assert 'form="ticked"' in one.get("queue", name="q", state="blocked").text
        assert one.done(
            "ticked", queue="q", action="cancel", id="run", state="blocked", confirm="q"
        )
        assert queue.counts().present == 0


def test_ticks_need_rights(site: Any, queue: Queue) -> None:
    """A reader without rights sees no boxes and is refused."""
    dead(queue, "a")
    rule = {"q": {"cancel"}}
    one = site(access=lambda _: rule)
    assert 'form="ticked"' not in one.get("queue", name="q", state="dead").text
    assert one.post("ticked", queue="q", action="redrive", id="i0").status_code == 403
    assert queue.counts().dead == 1


@pytest.mark.parametrize("action", ["purge", "delete"])
def test_what_destroys_wants_the_queue_s_name(site: Any, queue: Queue, action: str) -> None:
    queue.enqueue_many([b"x"] * 3)
    one = site()
    for given in ({}, {"confirm": ""}, {"confirm": "Q"}):
        assert one.post(action, queue="q", **given).status_code == 400
    assert queue.counts().present == 3
    assert "3 jobs" in one.done(action, queue="q", confirm="q")
    assert queue.counts().present == 0


def test_fail_worker(site: Any, queue: Queue) -> None:
    queue.enqueue(b"x")
    lease = queue.lease()
    said = site().done("fail_worker", queue="q", worker=lease.worker)
    assert said == "The worker counts as dead here; 1 job of it went to the front."
    assert queue.counts().parked == 1


def test_a_worker_is_quiet_goes_on_and_stops(site: Any, queue: Queue, newest: Server) -> None:
    queue.enqueue(b"x", delay=LONG)
    worker, one = Worker(url=newest.url, name="w"), site()
    worker.handler("q", concurrency=2)(lambda job: None)
    with worker:
        until(
            lambda: [one for one in queue.admin.workers() if one.facts], "the worker has reported"
        )
        (its,) = queue.admin.workers()
        fields = {"queue": "q", "worker": its.name}
        shown = text(one.get("workers"))
        assert f"0 of 2 {its.facts.host} process {os.getpid()}" in shown
        assert one.done("quiet_worker", **fields) == "The worker leases no more jobs of this queue."
        its_page = one.get("worker", queue="q", name=its.name)
        assert "w quiet" in text(its_page)
        assert 'action="do/resume_worker"' in its_page.text
        assert 'action="do/quiet_worker"' not in its_page.text
        assert one.done("resume_worker", **fields) == "The worker leases jobs of this queue again."
        assert (
            one.done("stop_worker", **fields)
            == "The worker stops, once it has finished the jobs that it runs."
        )
        until(lambda: worker._running is None or worker._running.stopping.is_set(), "it stops")
    assert one.done("quiet_worker", **fields) == "The worker is not there any more."
    assert one.post("stop_worker", queue="q").status_code == 400


def test_how_many_run_at_once(site: Any, queue: Queue, newest: Server) -> None:
    """The number is set in the queue's menu. The pages of its workers show it, and a wrong one is
    refused with words."""
    worker, one = Worker(url=newest.url, name="w"), site()
    worker.handler("q", concurrency=2)(lambda job: None)
    with worker:
        until(lambda: [one for one in queue.admin.workers() if one.facts], "it has reported")
        asking = one.get("queue", name="q", ask="set_concurrency")
        assert "Handlers that each worker runs at once" in text(asking)
        for wrong in ("", "0", "10001", "many"):
            refused = one.post("set_concurrency", queue="q", concurrency=wrong)
            assert (refused.status_code, "give" in refused.text) == (400, True), wrong
        said = one.done("set_concurrency", queue="q", concurrency="5")
        assert said == "Each worker runs 5 at once, in a few seconds."
        until(lambda: queue.admin.workers()[0].facts.slots == 5, "it has told")
        (its,) = queue.admin.workers()
        one = site()
        shown = text(one.get("worker", queue="q", name=its.name))
        assert "0 of 5 (code: 2)" in shown
        shown = text(one.get("queue", name="q"))
        assert "concurrency 5 in each worker, as an operator has set it" in shown
        assert "0 running of 5 (code: 2)" in shown
        assert 'name="reset"' in one.get("queue", name="q", ask="set_concurrency").text
        said = one.done("set_concurrency", queue="q", reset="1")
        assert (
            said == "Each worker runs as many handlers at once as its code says, in a few seconds."
        )
        until(lambda: queue.admin.workers()[0].facts.slots == 2, "it has told")
    assert "as an operator has set it" not in text(site().get("queue", name="q"))


def test_repair(site: Any, queue: Queue) -> None:
    queue.enqueue_many([b"x"] * 3)
    one = site()
    assert one.done("repair", queue="q", show="1") == "There is nothing to mend."
    assert one.done("repair", queue="q") == "There was nothing to mend."
    import redis

    with redis.Redis(
        unix_socket_path=queue._address.url.removeprefix("unix://").partition("?")[0]
    ) as client:
        client.xtrim(queue.ops.keys.key("jobs"), maxlen=1, approximate=False)
    assert (
        one.done("repair", queue="q", show="1")
        == "To be mended: 2 deleted. Nothing was changed yet."
    )
    assert queue.counts().lost == 2
    answer = one.post("repair", queue="q", show="1")
    one.client.headers.pop("cookie", None)
    page = one.client.get(str(answer.url.join(answer.headers["location"]))).text
    assert ("Mend it" in page, "Mend it" in one.client.get("queue?name=q&mend=1").text) == (
        True,
        False,
    )
    assert one.done("repair", queue="q") == "Mended: 2 deleted."
    assert queue.counts().lost == 0


# -- who may --------------------------------------------------------------------------------------


def test_read_only_by_default(site: Any, queue: Queue) -> None:
    """A mounted application shows pages and does nothing else, until its access rule grants
    more."""
    queue.enqueue(b"x", id="a")
    for rule in (None, lambda _: "read", lambda _: set()):
        one = site(access=rule)
        for action in ACTIONS:
            assert (
                one.post(
                    action, queue="q", id="a", confirm="q", payload="x", worker="w"
                ).status_code
                == 403
            )
        for path in ("queue?name=q", "job?queue=q&id=a"):
            assert 'method="post"' not in one.get(path).text
    assert queue.counts().enqueued == queue.counts().waiting == 1


def test_nothing_is_shown_to_whom_nothing_is_granted(site: Any, queue: Queue) -> None:
    queue.enqueue(b"x", id="a")
    one = site(access=lambda _: None)
    for path in ("", "queue?name=q", "job?queue=q&id=a", "find?id=a", "workers", "nowhere"):
        assert one.get(path).status_code == 403
        assert "q" not in text(one.get(path)).split()
    assert one.post("pause", queue="q").status_code == 403


def test_by_queue_and_action(site: Any, queue: Queue, newest: Any) -> None:
    """A queue that the rule does not allow is shown nowhere. The rule may be asynchronous."""
    queue.enqueue(b"x", id="a")
    with Queue("secret", url=newest.url) as other:
        other.enqueue(b"x", id="a")
        other.admin.schedule("nightly", b"x", every=60)
        lease = other.lease()
        lease.dead_letter("why")

    async def rule(request: Any) -> Any:
        return {"q": {"pause"}}

    one = site(access=rule)
    for path in ("", "find?id=a", "workers", "schedules", "dead", "flows"):
        assert "secret" not in one.get(path).text
        assert "nightly" not in one.get(path).text
    for path in (
        "queue?name=secret",
        "job?queue=secret&id=a",
        "dead?name=secret",
        "flow?name=secret",
    ):
        assert one.get(path).status_code == 404
    assert one.done("pause", queue="q") == "The queue is paused."
    assert one.post("resume", queue="q").status_code == 403
    assert one.post("pause", queue="secret").status_code == 403
    shown = one.get("queue", name="q").text
    assert "do/repair" not in shown


def test_rules_are_checked() -> None:
    rights = Rights.of({"a": None, "b": "read", "*": {"pause"}})
    assert [rights.sees(name) for name in "abc"] == [False, True, True]
    assert [rights.may(name, "pause") for name in "abc"] == [False, False, True]
    for wrong in ("write", {"a": "all"}, {"a": {"pauses"}}, 5, ["pause"], True):
        with pytest.raises(ConfigurationError, match="access answered"):
            Rights.of(wrong)


ELSEWHERE = [
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site", "origin": ORIGIN},
    {"sec-fetch-site": "none"},
    {"origin": "http://evil.test"},
    {"origin": "null"},
    {"origin": f"{ORIGIN}.evil.test"},
    {},
]


@pytest.mark.parametrize("headers", ELSEWHERE, ids=range(len(ELSEWHERE)))
def test_other_sites_can_do_nothing(site: Any, queue: Queue, headers: dict[str, str]) -> None:
    queue.enqueue(b"x")
    answer = site().post("pause", headers=headers, queue="q")
    assert answer.status_code == 403
    assert not queue.admin.paused()


def test_an_origin_will_do_where_browsers_say_no_more(site: Any, queue: Queue) -> None:
    queue.enqueue(b"x")
    assert site().post("pause", headers={"origin": ORIGIN}, queue="q").status_code == 303
    assert queue.admin.paused()


def test_get_never_acts(site: Any, queue: Queue) -> None:
    queue.enqueue(b"x")
    one = site()
    for action in ACTIONS:
        assert one.get(f"do/{action}", queue="q", confirm="q").status_code == 405
    assert queue.counts().waiting == 1
    assert one.client.post("queue?name=q").status_code == 405


def test_forms_are_bounded_and_are_forms(site: Any, queue: Queue) -> None:
    one = site()
    same = {"sec-fetch-site": "same-origin"}
    for body, kind in (
        (b"queue=q", "application/json"),
        (b"queue=q", "multipart/form-data; boundary=x"),
        (b"queue=q&payload=" + b"x" * (2 << 20), "application/x-www-form-urlencoded"),
        (b"queue=q&payload=%FF", "application/x-www-form-urlencoded"),
        ("queue=ä".encode(), "application/x-www-form-urlencoded"),
        (b"a=1&" * 60, "application/x-www-form-urlencoded"),
    ):
        sent = one.client.post("do/enqueue", content=body, headers={**same, "content-type": kind})
        assert sent.status_code == 400
    assert one.post("nothing", queue="q").status_code == 404
    assert queue.counts().enqueued == 0


@pytest.mark.parametrize("number", ["inf", "-inf", "nan", "1e999"])
def test_what_is_no_number_of_seconds(site: Any, queue: Queue, number: str) -> None:
    answer = site().post(
        "enqueue", headers={"sec-fetch-site": "same-origin"}, queue="q", payload="x", delay=number
    )
    assert answer.status_code == 400
    assert queue.counts().enqueued == 0


def test_each_action_is_logged(site: Any, queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    """The event has the user, the action, the place and the number. A refused action has none."""
    dead(queue, "a", "b")
    one = site()
    with caplog.at_level(logging.INFO, "headrace"):
        one.done("redrive", queue="q")
        assert one.post("delete", queue="q").status_code == 400
    (record,) = [
        record for record in caplog.records if getattr(record, "event", "") == "web_action"
    ]
    assert (record.action, record.queue, record.number, record.by) == (
        "redrive",
        "q",
        2,
        "127.0.0.1",
    )


def test_an_outcome_is_shown_once(site: Any, queue: Queue) -> None:
    """A link can't make up an outcome."""
    queue.enqueue(b"x")
    one = site()
    answer = one.post("pause", queue="q")
    following = str(answer.url.join(answer.headers["location"]))
    assert "The queue is paused." in one.get(following).text
    assert "The queue is paused." not in one.get(following).text
    assert "hello" not in text(one.get("queue", name="q", outcome="hello"))


def test_an_outcome_is_of_one_browser_and_one_page(site: Any, queue: Queue) -> None:
    """A token in an address that another user writes shows nothing, and makes no page go on by
    itself."""
    queue.enqueue_many([NewJob(b"x", id=f"j{n}") for n in range(3)])
    one, bulk = site(), {"name": "q", "action": "purge_dead", "state": "dead", "confirm": "q"}
    answer = one.post("pause", queue="q")
    following = answer.url.join(answer.headers["location"])
    token = following.params["outcome"]
    shown = one.get("matching", **bulk, outcome=token)
    assert shown.status_code == 200
    assert "data-onward" not in shown.text
    assert 'name="confirm" value' not in shown.text
    cookie = dict(one.client.cookies)
    assert list(cookie) == ["headrace_visitor"]
    one.client.cookies.clear()
    assert "The queue is paused." not in one.get(str(following)).text
    one.client.cookies.set("headrace_visitor", "somebody else's")
    assert "The queue is paused." not in one.get(str(following)).text
    one.client.cookies.clear()
    one.client.cookies.update(cookie)
    assert "The queue is paused." in one.get(str(following)).text


def test_a_user_of_the_server_that_may_only_read(site: Any, queue: Queue, newest: Server) -> None:
    """The user sees the pages. The server refuses its actions in words, whatever the access rule
    says."""
    queue.enqueue(b"x", id="a")
    with redis.Redis(unix_socket_path=newest.path) as client, viewing(client):
        one = site(url=newest.url.replace("unix://", "unix://viewer:secret@"))
        assert "✗" not in text(one.get())
        assert one.get("job", queue="q", id="a").status_code == 200
        for action, fields in {
            "pause": {},
            "purge": {"confirm": "q"},
            "cancel": {"id": "a"},
        }.items():
            refused = one.post(action, queue="q", **fields)
            assert (
                refused.status_code,
                "This user of the server may not do that" in text(refused),
            ) == (400, True)
    assert queue.counts().waiting == 1


def test_all_that_match(
    site: Any, queue: Queue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each step is an event. A page between two steps shows the progress, and goes on only on
    request."""
    monkeypatch.setattr(actions, "STEPS_WITHIN_S", 0)
    queue.enqueue_many([NewJob(b"x", headers={"kind": "ab"[n % 2]}) for n in range(1200)])
    one, fields = site(), {"queue": "q", "state": "waiting", "kind": "a"}
    assert one.post("cancel", **fields).status_code == 400  # unless the name is typed
    assert "Cancel all that match" in one.get("queue", name="q").text
    with caplog.at_level(logging.INFO, "headrace"):
        answer = one.post("cancel", **fields, confirm="q")
        between = str(answer.url.join(answer.headers["location"]))
        shown = one.get(between)
        assert (
            "500 of 500 were cancelled, of 1,000 jobs that were looked at (kind 'a'), and it goes on."
            in unescape(shown.text)
        )
        assert "data-onward" in shown.text
        again = one.get(
            between
            # of a link anybody may have written: nothing goes on by itself, and the name is asked
            # for
        )
        assert "data-onward" not in again.text
        assert "Type <code>q</code> to confirm" in again.text
        hidden = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', shown.text))
        assert "600 of 600 were cancelled, of 1,200 jobs" in one.done("cancel", **hidden)
    events = [record for record in caplog.records if getattr(record, "event", "") == "web_action"]
    assert [(record.action, record.number) for record in events] == [
        ("cancel", 500),
        ("cancel", 100),
    ]
    assert (queue.counts().waiting, queue.counts().cancelled) == (600, 600)
    assert one.get("matching", name="q", action="redrive", state="waiting").status_code == 404
