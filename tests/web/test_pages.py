"""Every page shows true values, escapes its input, and sends headers that browsers obey."""

from __future__ import annotations

import re
import threading
import time
from html import escape, unescape
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import redis.asyncio
from starlette.applications import Starlette
from starlette.routing import Mount

from headrace import ConfigurationError, Flow, Job, Limit, NewJob, Next, Queue, Rate, Worker
from headrace._model.views.texts import one_line
from headrace.console.web import render
from headrace.console.web.render import STATIC, static_files
from headrace.errors import RunSuspended
from headrace.inspect import reason_key
from headrace.testing import run
from headrace.web import app
from tests.support.awaiting import until
from tests.support.servers import Server
from tests.support.steps import LONG, waiting_run, write_trends
from tests.web.conftest import ORIGIN, text

PLAIN = [
    "",
    "workers",
    "schedules",
    "dead",
    "flows",
    "tenants",
    "find?id=x",
    "queue?name=q",
    "job?queue=q&id=a",
]
HOSTILE = [
    b"<script>alert(1)</script>",
    b"\"'><img src=x onerror=alert(1)>",
    b"</pre></textarea></title><svg onload=alert(1)>",
    b"{{ 7*7 }}{% raw %}",
    "\u202egnp.exe\u2066\u200b".encode(),
    b"a\x00\x1b[31m\x7f\r\n",
    b"\xff\xfe\xc3\x28",
    "\U0001f4a5\ud7ff￿".encode(),
    b"<!--" + b"A" * 300_000,
    b"]]>&lt;&#x3c;script&#x3e;",
    b"javascript:alert(1)",
]


def test_overview(site: Any, queue: Queue) -> None:
    queue.enqueue_many([b"x"] * 1234)
    queue.admin.pause()
    shown = text(site().get())
    for words in ("q paused", "1,234", "namespace headrace"):
        assert words in shown


def test_the_law_in_red(site: Any, queue: Queue, newest: Server) -> None:
    queue.enqueue_many([b"x"] * 3)
    with redis.Redis(unix_socket_path=newest.path) as client:
        client.xtrim(queue.ops.keys.key("jobs"), maxlen=1, approximate=False)
    one = site()
    assert "✗ 2 missing" in text(one.get())
    assert "3 enqueued ≠" in text(one.get("queue", name="q"))


def test_one_broken_queue_hides_no_other(site: Any, queue: Queue, newest: Server) -> None:
    queue.enqueue(b"x")
    with redis.Redis(unix_socket_path=newest.path) as client:
        client.set("headrace:{x}:x:delayed", "of another type")
    shown = text(site().get())
    assert "x can't be read: WRONGTYPE" in shown
    assert "✗" not in shown


def test_the_navigation_marks_the_section(site: Any, queue: Queue) -> None:
    queue.enqueue(b"x")
    holder = queue.lease().worker
    one = site()
    marks = [
        re.findall(r'href="([a-z./]+)" aria-current="(\w+)">[A-Z]', answer.text)
        for answer in (one.get(), one.get("workers"), one.get("worker", queue="q", name=holder))
    ]
    assert marks == [[("./", "page")], [("workers", "page")], [("workers", "true")]]


def test_the_way_to_a_page(site: Any, queue: Queue) -> None:
    queue.enqueue(b"x", id="a")
    queue.lease().dead_letter("why")
    one = site()

    def above(path: str, **query: str) -> list[str]:
        found = re.search(
            r'aria-label="Breadcrumb">(.*?)</nav>', one.get(path, **query).text, re.DOTALL
        )
        return [] if found is None else re.findall(r'href="([^"]*)"', unescape(found[1]))

    (group,) = re.findall(r"dead\?group=(\w+)", one.get("dead").text)
    assert above("job", queue="q", id="a") == ["./#queues", "queue?name=q"]
    assert above("queue", name="q") == ["./#queues"]
    assert above("trends", name="q") == ["./#queues", "queue?name=q"]
    assert above("dead", name="q") == ["dead"]
    assert above("dead", name="q", group=group) == ["dead", "dead?name=q"]
    assert above("dead") == above("workers") == []


def test_the_tab_that_has_jobs_is_open_and_stays(site: Any, queue: Queue) -> None:
    queue.enqueue(b"x", id="late", delay=LONG)
    one = site()
    address = 'data-address="queue?name=q&amp;state=delayed"'
    assert address in one.get("queue", name="q").text
    queue.enqueue(b"x")
    one.pages._inspector.forget()
    assert address in one.get("queue?name=q&state=delayed").text
    assert 'data-address="queue?name=q&amp;state=waiting"' in one.get("queue?name=q").text


def test_an_empty_server_tells_how_to_begin(site: Any, newest: Server) -> None:
    """The program that it shows enqueues a job."""
    shown = site(namespace="fresh").get()
    code = unescape(re.findall(r'<pre id="first-job"[^>]*>(.*?)</pre>', shown.text, re.DOTALL)[0])
    exec(code.replace("redis://localhost:6379/0", newest.url), {})
    assert "There is no queue yet" not in text(site(namespace="fresh").get())
    with Queue("emails", url=newest.url, namespace="fresh") as emails:
        assert emails.counts().waiting == 1


def test_queue_page_by_page(site: Any, queue: Queue) -> None:
    queue.enqueue_many([NewJob(b"x", id=f"i{n:03}") for n in range(120)])
    one, path, seen = site(), "queue?name=q", list[str]()
    while path:
        answer = one.get(path)
        seen += re.findall(r">(i\d+)</a>", answer.text)
        following = re.search(r'href="([^"]+)" rel="next"', answer.text)
        path = following[1].replace("&amp;", "&") if following else ""
    assert seen == [f"i{n:03}" for n in range(120)]


def test_a_sharded_queue(site: Any, newest: Server) -> None:
    """It is one queue with a row for each shard. An action reaches the shard of its job."""
    with Queue("s", url=newest.url, shards=3) as sharded:
        sharded.enqueue_many([NewJob(b"x", id=f"i{n}") for n in range(30)])
        anonymous = sharded.enqueue(b"x").id
        one = site()
        assert "s 3 shards" in text(one.get())
        shown = text(one.get("queue", name="s"))
        for shard in sharded.admin.shards():
            assert f"{shard.number} {shard.counts.waiting} 0 0 0 0" in shown
        for name in ("i7", anonymous):
            assert one.get("job", queue="s", id=name).status_code == 200
            one.done("cancel", queue="s", id=name)
            assert sharded.find(name) is None
        one.done("pause", queue="s")
        assert sharded.admin.paused()


def test_declared_options_are_in_words(site: Any, newest: Server) -> None:
    with Queue("r", url=newest.url, rate=Rate(5, key="tenant"), history=100) as declared:
        declared.lease()
    page = text(site().get("queue", name="r"))
    assert [
        words
        for words in ("rate 5 a second for each tenant", "history 100", "history ttl 7 d")
        if words not in page
    ] == []
    assert "Rate(" not in page


def test_trends(site: Any, queue: Queue, newest: Server) -> None:
    """Charts have their figures in words and are broken where nothing was recorded. A table shows
    the same."""
    one = site()
    assert "None are kept" in text(one.get("trends", name="q"))
    with Queue("t", url=newest.url, trends=True) as declared:
        declared.lease()
        assert "A chart begins with the second look" in text(one.get("queue", name="t"))
        assert "Nothing yet" in text(one.get("trends", name="t"))
        write_trends(declared, newest, [*range(1, 30), *range(60, 80)])
    shown = site().get("queue", name="t")
    assert 'href="trends?name=t"' in shown.text
    assert shown.text.count('class="plot"') == 2
    for span, lines in (("2h", 2), ("2d", 2), ("90d", 1)):
        shown = site().get("trends", name="t", span=span)
        assert shown.text.count('class="plot"') == 5, span
        assert shown.text.count("<polygon") == 5 * lines, span
        assert "Dead: dead at most 4, now 4" in shown.text
        assert "Waiting at most" in text(shown)
        assert not re.search(r"\bnan\b", shown.text)
    assert site().get("trends", name="t", span="1y").status_code == 404


def test_every_state_has_its_tab(site: Any, queue: Queue) -> None:
    queue.enqueue(b"x", id="late", delay=LONG)
    for name in ("dead", "leased"):
        queue.enqueue(b"x", id=name)
        lease = queue.lease()
        if name == "dead":
            lease.dead_letter("why")
    queue.enqueue(b"x", id="waits")
    one = site()
    for state, name in {
        "waiting": "waits",
        "running": "leased",
        "delayed": "late",
        "dead": "dead",
    }.items():
        shown = one.get("queue", name="q", state=state)
        assert f">{name}</a>" in shown.text
        assert f"{state.capitalize()} 1" in text(shown)
    assert one.get("queue", name="q", state="other").status_code == 404


def test_one_word_for_later(site: Any, queue: Queue, newest: Server) -> None:
    """Delayed jobs have a due time, and blocked jobs wait for something. Together they are called
    later."""
    queue.enqueue_many([NewJob(b"x", delay=LONG)] * 3)
    waiting_run(queue, "run")
    one = site()
    shown = one.get()
    assert re.search(r'data-label="Later">(\d+)<', shown.text)[1] == "4"  # type: ignore[index]
    assert "Delayed 3 Blocked 1" in text(shown)
    assert "Delayed 3 Blocked 1" in text(one.get("queue", name="q"))
    assert one.get("", sort="later").status_code == 200
    assert one.get("", sort="delayed").status_code == 404


def test_a_column_that_would_say_nothing_is_left_out(site: Any, queue: Queue) -> None:
    """This concerns kinds, attempts, reasons, workers and payloads."""
    queue.enqueue(b"", id="a")
    queue.enqueue(b"x", id="b", headers={"kind": "mail"})
    lease = queue.lease()
    heads = r'<th scope="col"[^>]*>([A-Z][\w, ]*)</th>'
    listed = re.compile(
        r'<caption class="hidden">(?:running|waiting|dead) jobs.*?</thead>', re.DOTALL
    )

    def columns(state: str) -> list[str]:
        found = listed.search(site().get("queue", name="q", state=state).text)
        return re.findall(heads, found[0] if found else "")

    assert columns("running") == ["Job", "Waited", "Running for", "Worker"]
    assert columns("waiting") == ["Kind", "Job", "Enqueued", "Payload"]
    lease.retry(reason="no")
    assert columns("waiting") == ["Kind", "Job", "Attempt", "Enqueued", "Reason", "Payload"]


def test_a_holder_is_named_in_full(site: Any, newest: Server) -> None:
    """The page of its job has room for the name."""
    worker, ended = (
        Worker(url=newest.url, name="a-machine-with-a-long-name.example.org-1234"),
        threading.Event(),
    )
    worker.handler("q")(lambda _: ended.wait(60) and None)
    with Queue("q", url=newest.url) as queue, worker:
        queue.enqueue(b"x", id="a")
        until(lambda: queue.counts().leased == 1)
        holder = queue.find("a").worker
        assert holder.startswith(worker.name)
        assert "<dt>Held by</dt><dd><a href" in (shown := site().get("job", queue="q", id="a").text)
        assert f">{holder}</a>" in shown
        ended.set()


def test_a_moment_that_no_calendar_has(site: Any, queue: Queue, newest: Server) -> None:
    """A job that is due in the year 10000 is listed and shown with the others."""
    for name in ("soon", "far"):
        queue.enqueue(b"x", id=name, delay=LONG)
    with redis.Redis(unix_socket_path=newest.path) as client:
        client.zadd(queue.ops.keys.key("delayed"), {"far": 253_402_300_800_000})
    one = site()
    listed = one.get("queue", name="q", state="delayed")
    assert listed.status_code == 200
    assert re.findall(r">(soon|far)</a>", listed.text) == ["soon", "far"]
    job = one.get("job", queue="q", id="far")
    assert job.status_code == 200
    assert "253402300800" in job.text
    assert one.get().status_code == 200
    assert one.get("find", id="far").status_code == 303


def test_a_leased_job(site: Any, queue: Queue) -> None:
    trace = "0af7651916cd43dd8448eb211c80319c"
    queue.enqueue(
        b'{"a": 1}',
        id="a/b c",
        headers={"traceparent": f"00-{trace}-b7ad6b7169203331-01", "h": "v"},
    )
    lease = queue.lease()
    shown = site(trace_url="https://traces.test/{trace_id}").get("job", queue="q", id="a/b c")
    assert f'href="https://traces.test/{trace}"' in shown.text
    words = (
        "running a/b c",
        lease.worker,
        f"Token {lease.token}",
        "Until in",
        "Timeline",
        "json, 8 bytes",
        "h v",
    )
    for one in words:
        assert one in text(shown)


def test_a_run(site: Any, queue: Queue) -> None:
    """The page has its steps, its progress, and the signal for which it waits."""
    waiting_run(queue, "a")
    shown = site().get("job", queue="q", id="a")
    assert '<progress aria-label="Progress" max="1" value="0.4">' in shown.text
    words = text(shown)
    for part in (
        "40% page 12 of 30",
        "waits for the signal approved",
        "charge done",
        '{ "paid": 7 }',
        "approved waiting ≥",
    ):
        assert part in words, part
    hidden = site(
        redact=lambda what, text, job: "*" if what in {"step charge", "progress"} else text
    )
    words = text(hidden.get("job", queue="q", id="a"))
    assert "paid" not in words
    assert "page 12" not in words


def test_children_of_a_run(site: Any, newest: Server) -> None:
    """Each is a row that leads to the page of its job."""
    with Queue("q", url=newest.url) as queue:
        queue.enqueue(b"x", id="a")
        with pytest.raises(RunSuspended):
            queue.lease().job.run_all([("q/parts", b"north"), ("q/parts", b"south")])
    one = site()
    shown = one.get("job", queue="q", id="a").text
    links = re.findall(r'↳ <a href="(job\?[^"]*)"', shown)
    assert len(links) == 2
    assert [one.get(unescape(link)).status_code for link in links] == [200, 200]
    assert "running" in text(one.get("job", queue="q", id="a"))


def scripts(client: Any) -> int:
    """Return how many scripts the server has run."""
    return int(client.info("commandstats")["cmdstat_evalsha"]["calls"])


def test_the_children_of_children(site: Any, newest: Server) -> None:
    """They are a folded tree below the child's row, read by a few commands. A rule may hide a
    queue."""
    with Queue("q", url=newest.url) as queue, Queue("q/parts", url=newest.url) as parts:
        queue.enqueue(b"x", id="a")
        with pytest.raises(RunSuspended):
            queue.lease().job.run_all([("q/parts", b"north"), ("q/parts", b"south")])
        for number in (2, 21):
            with pytest.raises(RunSuspended):
                parts.lease().job.run_all([("q/deep", b"x")] * number)
        with Queue("q/deep", url=newest.url) as deep, pytest.raises(RunSuspended):
            deep.lease().job.run(("q/deep", b"deepest"))
    one = site()
    shown = one.get("job", queue="q", id="a").text
    found = re.findall(r'<details class="below"[^>]*?( open)?><summary>([^<]*)', shown)
    assert found == [("", "2 children: 2 "), ("", "1 child:  "), ("", "21 children: 21 ")]
    with newest.client() as client:
        before = scripts(client)
        assert site().get("job", queue="q", id="a").status_code == 200
        assert scripts(client) - before < 26 + 20  # one for each child, and some for the job
    links = set(re.findall(r'↳ <a href="(job\?[^"]*)"', shown))
    assert len(links) == 2 + 2 + 1 + 21
    assert site().get(unescape(max(links))).status_code == 200
    hidden = site(access=lambda _: {"q": "read", "q/deep": "read"})
    assert 'class="below"' not in hidden.get("job", queue="q", id="a").text


def test_a_failure_that_was_overcome_is_below_and_in_the_past(site: Any, newest: Server) -> None:
    """The page of a waiting run leads with its signal, the page of a retried job with the
    reason."""
    with newest.queue("q", tracebacks=True, history=10) as queue:
        queue.enqueue(b"x", id="a")
        lease = queue.lease()
        lease.job.step("charge", lambda: 1)
        assert lease.retry(reason="it was full")
        words = text(site().get("job", queue="q", id="a"))
        assert words.index("Why its last attempt failed it was full") < words.index("Timeline")
        assert "Reason" in text(site().get("queue", name="q"))
        lease = queue.lease()
        shown = site().get("job", queue="q", id="a")
        assert "Why the attempt before this one failed" in shown.text
        with pytest.raises(RunSuspended):
            lease.job.wait_for("go")
        shown = site().get("job", queue="q", id="a")
        words = text(shown)
        assert "Why its last attempt failed" not in words
        assert "<details open" not in shown.text
        assert words.index("Waits for the signal go") < words.index("Timeline")
        assert words.index("Timeline") < words.index(
            "An earlier delivery failed, and the run went on it was full"
        )
        assert "it was full" not in text(site().get("queue", name="q", state="blocked"))
        assert queue.signal("a", "go", by="ada") == "woke"
        lease = queue.lease()
        assert "An earlier delivery failed" in text(site().get("job", queue="q", id="a"))
        assert lease.complete()
        words = text(site().get("job", queue="q", id="a"))
    for part in (
        "Deliveries 3",
        "in all deliveries, without its suspensions",
        "Delivery 1 failed",
        "Delivery 2 suspended",
        "Delivery 3 completed",
        "go signalled",
        "by ada",
        "charge done",
    ):
        assert part in words, part
    assert "Attempt 1" not in words


def test_a_history_says_which_values_it_left_out(site: Any, newest: Server) -> None:
    with newest.queue("q", history=10) as queue:
        queue.enqueue(b"x", id="a")
        lease = queue.lease()
        for name in ("a", "b"):
            lease.job.step(name, lambda: "v" * 40_000)
        assert lease.complete()
    assert "bytes did not fit into the history" in text(site().get("job", queue="q", id="a"))


def test_a_result(site: Any, queue: Queue) -> None:
    queue.enqueue(b"x", id="a")
    queue.lease().complete(result=b"the result")
    assert "completed a" in text(site().get("job", queue="q", id="a"))
    assert "the result" in text(site().get("job", queue="q", id="a"))


def test_an_end(site: Any, newest: Server) -> None:
    """The page of a job that has left has how, when and by which worker it ended. It offers no
    action."""
    with Queue("q", url=newest.url, history=10) as queue:
        queue.enqueue(b"payload", id="a", headers={"kind": "mail"})
        lease = queue.lease()
        lease.retry(reason=LookupError("first"))
        lease = queue.lease()
        lease.complete()
        queue.enqueue(b"x", id="b")
        queue.lease().dead_letter("why")
    shown = site(access=lambda _: "read").get("job", queue="q", id="a")
    # the wait, and two attempts
    assert len(re.findall(r'<rect class="\w+" x="[\d.]+%" width="[\d.]+%"', shown.text)) == 3
    for words in (
        "completed a",
        "Attempt 1 failed",
        "Attempt 2",
        f"Ended with {lease.worker}",
        f"attempt 1 failed, with {lease.worker}: LookupError: first",
        f"completed in attempt 2, with {lease.worker}",
        "payload",
    ):
        assert words in text(shown)
    assert 'action="do/' not in shown.text


def test_jobs_that_have_ended_are_listed(site: Any, newest: Server) -> None:
    """All are listed, or some by kind and by how they ended."""
    with Queue("q", url=newest.url, history=10) as queue:
        for name in ("a", "b"):
            queue.enqueue(b"x", id=name, headers={"kind": name})
        for lease in queue.lease_many(2):
            assert lease.complete() if lease.job.id == "a" else lease.dead_letter("why")

    def listed(**chosen: str) -> list[str]:
        shown = site().get("queue", name="q", state="ended", **chosen).text
        return [name for name in ("a", "b") if f'href="job?queue=q&amp;id={name}"' in shown]

    assert listed() == ["a", "b"]
    assert listed(kind="a") == ["a"]
    assert listed(end="dead") == ["b"]
    assert listed(kind="a", end="dead") == []
    assert site().get("queue", name="q", state="ended", end="lost").status_code == 404


def test_a_list_is_filtered_and_sorted_by_its_address(site: Any, newest: Server) -> None:
    """Kind, header, reason, payload and time filter. The form and the next pages keep them."""
    with Queue("q", url=newest.url, history=100) as queue:
        for number in range(60):
            headers = {"kind": f"k{number % 2}", "tenant": f"t{number % 3}"}
            queue.enqueue(b'{"order": %d}' % number, id=f"i{number:02}", headers=headers)
        for lease in queue.lease_many(60):
            lease.dead_letter(f"pipe {lease.job.id}")
    one = site()

    def listed(path: str = "queue?name=q&state=dead", **chosen: str) -> list[str]:
        found, answer = list[str](), one.get(path, **chosen)
        while True:
            assert answer.status_code == 200, text(answer)
            found += re.findall(
                r'<th scope="row" class="name"><a href="job\?[^"]*">(i\d+)</a>', answer.text
            )
            following = re.search(r'href="([^"]+)" rel="next"', answer.text)
            if following is None:
                return found
            answer = one.get(following[1].replace("&amp;", "&"))

    everything = [f"i{number:02}" for number in range(60)]
    assert listed() == everything[::-1]
    dead = {"name": "q", "state": "dead"}
    assert listed("queue", **dead, order="oldest") == everything
    assert listed("queue", **dead, order="oldest", kind="k1", since="1h") == everything[1::2]
    assert listed("queue", **dead, kind="k0", header="tenant=t0") == everything[::6][::-1]
    assert listed("queue", **dead, reason="pipe i07", payload='"order": 7') == ["i07"]
    assert (
        listed("queue", **dead, until="1h")
        == listed("queue", **dead, since="2999-01-01T00:00")
        == []
    )
    shown = one.get("queue", **dead, kind="k1", header="tenant=t0", since="1h")
    for field in (
        'name="kind" value="k1"',
        'name="header" value="tenant=t0"',
        'name="since" value="1h"',
    ):
        assert field in shown.text
    assert "10 of 60 jobs that were looked at match." in text(shown)
    assert "pipe i03 " in text(shown)
    assert "k1 30 30 (100%)" in text(shown)
    for wrong, words in (
        ({"since": "soon"}, "give a span such as"),
        ({"header": "x"}, "give name=value"),
    ):
        refused = one.get("queue", **dead, **wrong)
        assert (refused.status_code, words in text(refused)) == (400, True)
    assert one.get("queue", **dead, order="random").status_code == 400


def test_times_of_jobs_in_lists(site: Any, newest: Server) -> None:
    """The list has how long jobs waited and ran, if known. A waiting job has its age."""
    with Queue("q", url=newest.url, history=10) as queue:
        queue.enqueue(b"x", id="a", headers={"kind": "mail"})
        queue.lease().complete()
        queue.enqueue(b"x", id="b")
        queue.lease()
        queue.enqueue(b"x", id="c")
    one = site()
    ended = text(one.get("queue", name="q", state="ended"))
    assert re.search(r"mail a completed \S+ \S+ ago \d+ ms \d+ ms", ended), ended
    assert re.search(r"b ≤ \d+ m?s ≥ \d+ m?s", text(one.get("queue", name="q", state="running")))
    assert "Completed" in text(one.get("queue", name="q"))
    assert re.search(r"c \S+ \S+ ago", text(one.get("queue", name="q")))


def test_a_death_is_explained(site: Any, newest: Server) -> None:
    """Its reason comes first, and each attempt has its bar, its error and its traceback."""
    with Queue("q", url=newest.url, history=10, tracebacks=True) as queue:
        queue.enqueue(
            b"x", id="a", headers={"kind": "mail", "traceparent": "00-1", "tenant": "ada"}
        )
        with pytest.raises(LookupError) as caught:
            raise LookupError("no such user")
        queue.lease().retry(reason=caught.value)
        queue.lease().dead_letter(caught.value)
    shown = text(site().get("job", queue="q", id="a"))
    for words in (
        "Why it died LookupError: no such user",
        "Attempt 1 failed",
        "Attempt 2 died",
        "raise LookupError",
    ):
        assert words in shown, words
    assert re.search(r"Died \d+ s ago Ran for \d+ m?s Waited \d+ m?s Attempt 2", shown)
    assert "Headers kind mail tenant ada Internal headers (1) traceparent 00-1" in shown


def test_attempts_that_nobody_recorded(site: Any, queue: Queue) -> None:
    """A queue without a history knows only the last attempt. The page says so and draws no
    other."""
    queue.enqueue(b"x", id="a")
    queue.lease().retry(reason="first")
    queue.lease().dead_letter("why")
    shown = site().get("job", queue="q", id="a")
    assert "Attempt 2 died" in text(shown)
    assert "1 earlier attempt is not recorded" in text(shown)
    assert "Ran for – not recorded" in text(shown)


@pytest.mark.parametrize("shards", [1, 2])
def test_position_and_estimate(site: Any, newest: Server, shards: int) -> None:
    """A waiting job has its place in the row, and an estimate once the pace is known."""
    with Queue("q", url=newest.url, shards=shards) as queue:
        queue.enqueue_many([NewJob(b"x", id=f"i{n}", key="k") for n in range(41)])
        one = site()
        shown = text(one.get("job", queue="q", id="i2"))
        assert "Position 3 of 41" in shown
        assert (
            f"in shard {queue.find('i2').job.shard}" in shown
            if shards > 1
            else "in shard" not in shown
        )
        assert "not known no worker runs" in shown
        queue.lease()
        one.pages._inspector.forget()
        assert "not known the pace is measured" in text(one.get("job", queue="q", id="i2"))
        time.sleep(0.6)  # two looks count as two from half a second on
        for lease in queue.lease_many(5):
            lease.complete()
        one.pages._inspector.forget()
        shown = text(one.get("job", queue="q", id="i20"))
        assert re.search(
            r"Position 15 of 35 .*Its turn in \d+ (s|min) at the pace of the last minute", shown
        ), shown
        queue.admin.pause()
        one.pages._inspector.forget()
        assert "not known the queue is paused" in text(one.get("job", queue="q", id="i20"))


@pytest.mark.parametrize(
    "name", [".", "..", " lead", "trail ", " ", "a+b", "a&b=c#d", "%2e", "ä/ö", "-"]
)
def test_every_id_is_found(site: Any, queue: Queue, name: str) -> None:
    """The typed id is found, and its link leads to it."""
    queue.enqueue(b"x", id=name)
    queue.enqueue(b"x", id="other")
    one = site()
    found = one.get("find", id=name)
    assert found.status_code == 303
    shown = one.get(found.headers["location"])
    assert shown.status_code == 200
    assert f'dir="ltr">{escape(one_line(name))}<' in shown.text


def test_find(site: Any, queue: Queue, newest: Server) -> None:
    """One hit is shown at once, several are listed."""
    queue.enqueue(b"x", id="a")
    one = site()
    assert one.get("find", id=" a ").headers["location"] == "job?queue=q&id=a"
    assert "There is none in 1 queue" in text(one.get("find", id="b"))
    with Queue("r", url=newest.url) as other:
        other.enqueue(b"x", id="a")
    found = site().get("find", id="a")
    assert re.findall(r'href="job\?queue=(\w)&amp;id=a"', found.text) == ["q", "r"]
    assert one.get("find").status_code == 200


def test_workers(site: Any, queue: Queue) -> None:
    queue.enqueue(b"x", id="a")
    lease = queue.lease()
    one = site()
    assert lease.worker in text(one.get("workers"))
    shown = one.get("worker", queue="q", name=lease.worker)
    assert 'href="job?queue=q&amp;id=a"' in shown.text
    assert one.get("worker", queue="q", name="none").status_code == 404


def test_workers_with_other_terms(site: Any, queue: Queue, newest: Server) -> None:
    queue.enqueue_many([b"x"] * 3)
    assert queue.lease() is not None
    with Queue("q", url=newest.url, limits=Limit(1, key="tenant")) as other:
        other.lease()
        name = next(one.name for one in queue.admin.workers() if one.differs)
    one = site()
    shown = "1 worker declares other terms than the queue's, none: "
    assert shown in text(one.get(""))
    assert "`fair= limits=tenant rates=` for " in text(one.get(""))
    assert text(one.get("workers")).count("other terms") == 1
    assert "declares `fair= limits=tenant rates=` for q , which has other terms, since" in text(
        one.get("worker", queue="q", name=name)
    )


def test_schedules(site: Any, queue: Queue) -> None:
    queue.admin.schedule("nightly", b"x", every=7200)
    one = site()
    assert "nightly q every 2 h in 2 h none yet one job for all" in text(one.get("schedules"))
    assert "nightly: every 2 h" in text(one.get("queue", name="q")).replace(" :", ":")
    queue.admin.schedule("daily", b"x", cron="0 3 * * *", timezone="Europe/Berlin")
    queue.admin.pause_schedule("nightly")
    job = queue.admin.run_schedule("nightly")
    one = site()  # another reader: the first keeps what it has read for a moment
    shown = text(one.get("schedules"))
    assert "At 03:00 every day, Europe/Berlin" in shown
    assert "nightly q every 2 h paused" in shown
    assert (
        f'href="job?queue=q&amp;id={quote(job, safe="")}"'
        in one.get("schedule", queue="q", name="nightly").text
    )
    for fields in ({"queue": "q", "name": "none"}, {"queue": "none", "name": "daily"}):
        assert one.get("schedule", **fields).status_code == 404
    assert "Run now" not in text(
        site(access=lambda _: "read").get("schedule", queue="q", name="daily")
    )


@pytest.mark.parametrize(
    "name", ["nightly report", "17 of march", "a&b=c#d?e/f", '"it\'s" [<b>]', "räpört +%41"]
)
def test_names_in_addresses(site: Any, queue: Queue, name: str) -> None:
    """Each link to a schedule or its job leads to a page whose form names it."""
    queue.admin.schedule(name, b"x", every=7200)
    queue.admin.run_schedule(name)
    one = site()
    for page, asked in (("schedules", {}), ("queue", {"name": "q"})):
        places = set(re.findall(r'href="((?:schedule|job)\?[^"]*)"', one.get(page, **asked).text))
        assert places, page
        for place in places:
            assert one.client.get(unescape(place)).status_code == 200, place
    shown = one.get("schedule", queue="q", name=name)
    assert f'name="name" value="{escape(name)}"' in shown.text.replace("&#34;", "&quot;").replace(
        "&#39;", "&#x27;"
    )
    assert "every 2 h" in text(shown)
    assert one.done("pause_schedule", queue="q", name=name)
    assert one.done(
        "schedule",
        queue="q",
        name=name,
        every="60",
        payload="y",
        missed="once",
        cron="",
        timezone="",
    )
    assert [(every.name, every.every) for every in queue.admin.schedules()] == [(name, 60.0)]


def test_lists_have_the_cause_first(site: Any, queue: Queue) -> None:
    """The page of the job has the whole reason."""
    queue.enqueue(b"x", id="i0")
    reason = "no handler for jobs of kind 'fax': this worker knows 'mail'"
    queue.lease().dead_letter(reason)
    one, key = site(), reason_key(reason)
    for asked in ({}, {"name": "q"}, {"group": key}, {"name": "q", "state": "dead"}):
        shown = text(one.get("queue" if "state" in asked else "dead", **asked))
        assert "kind 'fax' has no handler: this worker knows 'mail'" in shown
        assert "no handler for jobs" not in shown
    assert reason in text(one.get("job", queue="q", id="i0"))


def test_dead_letters_by_reason(site: Any, queue: Queue) -> None:
    for number in range(3):
        queue.enqueue(b"x", id=f"i{number}")
        queue.lease().dead_letter(f"timeout after {number} s")
    one = site()
    with Queue("r", url=queue._address.url) as other:
        other.enqueue(b"x", id="other", headers={"kind": "mail"})
        other.lease().dead_letter("timeout after 9 s")
    one = site()
    shown = text(one.get("dead"))
    for words in (
        "Dead letters 4 Last hour 4",
        "All queues 4 q 3 r 1",
        "timeout after 2 s q 3 ",
        "9 s mail r 1 ",
    ):
        assert words in shown
    assert "mail" not in text(one.get("dead", name="q"))
    opened = text(one.get("dead", group=reason_key("timeout after 1 s")))
    assert "i2 q" in opened
    assert "Redrive all" in opened
    assert "other" not in opened
    assert "Redrive all" not in text(
        site(access=lambda _: "read").get("dead", group=reason_key("timeout after 1 s"))
    )
    hidden = site(access=lambda _: {"r": "read"})
    assert "i2" not in text(hidden.get("dead"))
    for query in ({"group": reason_key("timeout after 1 s")}, {"name": "q"}, {"group": "none"}):
        assert hidden.get("dead", **query).status_code == 404


def test_shares(site: Any, newest: Server) -> None:
    with Queue[bytes]("f", url=newest.url, fair="org/user") as fair:
        fair.enqueue_many([NewJob(b"x", headers={"org": "<b>acme", "user": "ada"})] * 3)
        fair.lease()
        shown = text(site().get("queue", name="f"))
        assert "org/user Share Running Waiting" in shown
        assert "<b>acme/ada 100% 1 2" in shown or "<b>acme/ada 1 2" in shown
        fair.admin.pause(value="<b>acme")
        assert "<b>acme/ada paused 1 2" in text(site().get("queue", name="f"))


def test_slots(site: Any, newest: Server) -> None:
    """The page shows slots of limits by other headers. The table of shares shows slots by the
    header of `fair`."""
    limits = [Limit(2, key="customer"), Limit(3, key="tenant")]
    with Queue[bytes]("f", url=newest.url, fair="tenant", limits=limits) as fair:
        jobs = [NewJob(b"x", headers={"tenant": f"t{n}", "customer": "<b>c"}) for n in range(4)]
        fair.enqueue_many([*jobs, NewJob(b"x", headers={"tenant": "t", "customer": "d"})])
        assert len(fair.lease_many(9)) == 3
        for page in (site().get("tenants"), site().get("queue", name="f")):
            shown = text(page)
            assert "The values of customer with the most running jobs." in shown
            assert "customer Running <b>c 2 of 2 at its limit d 1 of 2" in shown
            assert "<b>" not in page.text
            assert shown.count("Slots of f") == 1


@pytest.mark.parametrize("shards", [1, 6])
def test_flows(site: Any, newest: Server, shards: int) -> None:
    flow, worker = Flow("shop", url=newest.url, shards=shards), Worker(url=newest.url)

    @flow.stage("order", next="bill")
    def order(job: Any) -> Any:
        return Next("bill", b"ordered")

    @flow.stage("bill")
    def bill(job: Any) -> bytes:
        return b"billed"

    worker.flow(flow)
    flow.start(b"x", id="r1", attributes={"customer": "<b>"})
    run(worker, newest.url)
    flow.start(b"x", id="r2")
    flow.close()
    one = site()
    assert 'href="flow?name=shop"' in one.get("flows").text
    assert "r1 completed bill" in text(one.get("flow", name="shop"))
    shown = text(one.get("run", flow="shop", id="r1"))
    for words in ("completed r1", "customer <b>", "Result of order", "ordered", "billed"):
        assert words in shown
    assert 'href="run?flow=shop&amp;id=r2"' in one.get("job", queue="shop/order", id="r2").text
    assert one.get("run", flow="shop", id="r9").status_code == 404


@pytest.mark.parametrize("payload", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_payloads_do_nothing(site: Any, queue: Queue, payload: bytes) -> None:
    """Hostile text may be in payloads, ids, headers, reasons, names of schedules and the query."""
    words = payload.decode("utf-8", "replace")[:400]
    name = re.sub(r"[\x00-\x1f\x7f-\x9f]", "", words) or "x"
    queue.enqueue(payload, id=name, headers={"h": words, "<b>": "x"})
    queue.lease().dead_letter(words)
    queue.enqueue(payload)
    queue.admin.schedule(name[:100], payload, every=60)
    one = site()
    answers = [
        one.get("queue", name="q"), one.get("queue", name="q", state="dead"), one.get("job", queue="q", id=name),
        one.get("dead", name="q"), one.get("schedules"),
        one.get("schedule", queue="q", name=name[:100]), one.get("find", id=name), one.get("find", id=words),
        one.get("queue", name=words), one.get("job", queue="q", id=words), one.get(quote(words[:100] or "x", safe="")),
    ]  # fmt: skip
    for answer in answers:
        assert answer.status_code in (200, 303, 400, 404)
        bare = re.sub(r'<script src="[^"]*static/\w+/live.js" defer></script>', "", answer.text)
        bare = re.sub(r'="[^"]*"', '=""', bare)
        tags = set(re.findall(r"<\s*/?\s*([a-zA-Z!][\w-]*)", bare))
        assert not tags & {"script", "img", "b"}, tags
        assert not re.search(r"<[^>]*\son\w+\s*=", bare)
        assert not set(re.sub(r'<input type="(?:hidden|checkbox)"[^>]*>', "", answer.text)) & set(
            "\x00\x1b\u202e\u2066\x7f"
        )
        assert len(answer.content) < 200_000
    assert answers[0].status_code == 200


def test_headers_of_every_answer(site: Any, queue: Queue) -> None:
    queue.enqueue(b"x", id="a")
    one = site()
    answers = [one.get(path) for path in (*PLAIN, "static/style.css", "nowhere")] + [
        one.post("pause", queue="q")
    ]
    for answer in answers:
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert (answer.headers["x-content-type-options"], answer.headers["referrer-policy"]) == (
            "nosniff",
            "no-referrer",
        )
        if "static" not in str(answer.url):
            assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("path", PLAIN)
def test_no_page_has_inline_code_or_another_host(site: Any, queue: Queue, path: str) -> None:
    """All links are relative, so the prefix of a mounted application is of no concern."""
    queue.enqueue(b"x", id="a")
    shown = site().get(path).text
    assert not re.search(r"<style|\sstyle=|<script>|\son\w+=|javascript:", shown)
    for address in re.findall(r'(?:href|src|action)="([^"]*)"', shown):
        assert not re.match(r"/|\w+:", address), address


def test_static_files(site: Any) -> None:
    """Browsers cache this version for ever. A page of another version gets it uncached."""
    one, (version, found) = site(), static_files()
    assert f'src="static/{version}/live.js"' in one.get().text
    for name, kind in STATIC.items():
        answer = one.get(f"static/{version}/{name}")
        assert (answer.content, answer.headers["content-type"].partition(";")[0]) == (
            found[name],
            kind,
        )
        assert answer.headers["cache-control"] == "max-age=31536000, immutable"
        for other in (f"static/{name}", f"static/0123/{name}", f"static/{version}/x/{name}"):
            answer = one.get(other)
            assert (answer.content, answer.headers["cache-control"]) == (found[name], "no-store"), (
                other
            )
    assert one.get(f"static/{version}/nothing").status_code == 404


def test_another_content_is_another_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version, found = static_files()
    for name, content in found.items():
        (tmp_path / "static").mkdir(exist_ok=True)
        (tmp_path / "static" / name).write_bytes(content)
    monkeypatch.setattr(render, "files", lambda _: tmp_path)
    assert static_files.__wrapped__() == (version, found)
    (tmp_path / "static" / "live.js").write_bytes(found["live.js"] + b"\n")
    assert static_files.__wrapped__()[0] != version


def test_mounted_below_a_prefix(site: Any, queue: Queue) -> None:
    """It finds its pages by `root_path`, and its folder by a redirect."""
    queue.enqueue(b"x", id="a")
    one = site()
    one.mount(Starlette(routes=[Mount("/in/ops", one.pages)]), f"{ORIGIN}/in/ops/")
    assert "Queues" in text(one.get("./"))
    assert "waiting a" in text(one.get("job", queue="q", id="a"))
    assert one.get("../ops").headers["location"].endswith("/in/ops/")
    assert one.done("pause", queue="q") == "The queue is paused."


def test_several_namespaces(site: Any, newest: Server) -> None:
    """The first is at the root, the others below their names. Each page leads to the others, and
    acts in its own. A rule can tell them apart.
    """
    for name in ("a", "b"):
        with Queue(f"q-{name}", url=newest.url, namespace=name) as queue:
            queue.enqueue(b"x", id="1")
    one = site(namespace=["a", "b", "a"])
    for base in ("", "/in/ops"):
        one.mount(Starlette(routes=[Mount(base, one.pages)]), f"{ORIGIN}{base}/")
        shown = one.get("./")
        assert re.findall(r'<a href="([./@a-z]*)"( aria-current="true")?>[ab]</a>', shown.text) == [
            ("./", ' aria-current="true"'), ("@b/", ""),
        ]  # fmt: skip
        assert ("q-a" in shown.text, "q-b" in shown.text) == (True, False)
        shown = one.get("@b/queue?name=q-b")
        assert ("Waiting 1" in text(shown), "namespace b" in text(shown)) == (True, True)
        assert '<a href=".././">a</a>' in shown.text
        assert one.get("@b").headers["location"].endswith("@b/")
        assert one.get("@c/").status_code == 404
    one.mount(one.pages, f"{ORIGIN}/@b/")
    assert one.done("pause", queue="q-b") == "The queue is paused."
    with Queue("q-b", url=newest.url, namespace="b") as queue:
        assert queue.admin.paused()
    hidden = site(
        namespace=["a", "b"],
        access=lambda request: "read" if request.scope["headrace.namespace"] == "a" else None,
    )
    assert (hidden.get("./").status_code, hidden.get("@b/").status_code) == (200, 403)
    with pytest.raises(ConfigurationError, match="at least one"):
        app(newest.url, namespace=[])
    with pytest.raises(ConfigurationError, match="namespace"):
        app(newest.url, namespace=["a", "b c"])


def test_a_server_that_is_away(site: Any) -> None:
    one = site()
    one.close()
    away: Any = app("redis://localhost:1")
    one.mount(away)
    away._options["timeout"], away._look = 0.2, None
    answer = one.get()
    assert answer.status_code == 503
    assert "does not answer" in text(answer)


def test_what_is_not_there(site: Any, queue: Queue) -> None:
    one = site()
    for path in (
        "nowhere",
        "static/../app.py",
        "static/nothing",
        "queue?name=none",
        "queue",
        "job?queue=q&id=none",
    ):
        assert one.get(path).status_code == 404, path
    assert one.get("queue?name=a%20b").status_code == 400
    queue.enqueue(b"x")
    assert one.get("queue?name=q&cursor=nonsense").status_code in (200, 400)


def test_bad_arguments() -> None:
    with pytest.raises(TypeError, match="access must be a function"):
        app("redis://localhost", access="read")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"client must be a redis\.asyncio"):
        app(redis.Redis())  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="url"):
        app("http://localhost")


def test_a_client_of_yours(site: Any, newest: Server, runner: Any, queue: Queue) -> None:
    queue.enqueue(b"x")
    client = redis.asyncio.Redis(unix_socket_path=newest.path)
    one = site(url=client)
    assert "✗" not in text(one.get())
    one.close()
    runner.run(client.aclose())


def test_values_of_tenants_are_redacted(site: Any, newest: Server) -> None:
    """Values are redacted like the headers that they come from, because a value may be a person's
    address."""

    def redact(what: str, text: str, job: Job[Any]) -> str:
        assert job.headers == {what.removeprefix("header "): text} or what == "payload"
        return f"<{what}>" if what in {"header user", "header customer"} else text

    limits = [Limit(2, key="customer"), Limit(9)]
    with Queue[bytes]("f", url=newest.url, fair="org/user", limits=limits) as fair:
        some = {"org": "acme", "user": "s3cret-ada", "customer": "s3cret-bob"}
        fair.enqueue_many([NewJob(b"x", headers=some)] * 3)
        fair.lease()
        one = site(redact=redact)
        for page in (one.get("queue", name="f"), one.get("tenants")):
            assert "s3cret" not in page.text
            assert "acme/<header user>" in text(page)
            assert "<header customer> 1 of 2" in text(page)


def test_redacted(site: Any, queue: Queue) -> None:
    queue.enqueue(b"s3cret", id="a")
    one = site(redact=lambda what, text, job: text.replace("s3cret", "*"))
    assert "s3cret" not in one.get("job", queue="q", id="a").text + one.get("queue", name="q").text
