import pytest
from headrace import Job

from mail import emails, send, welcome, worker


def test_the_function_itself():
    coroutine = send(Job(id="1", payload={"to": "ada@example.org"}, queue="emails"))
    with pytest.raises(StopIteration) as returned:
        coroutine.send(None)
    assert returned.value.value == "sent to ada@example.org"


def test_sending(headrace_run):
    receipts = [welcome(f"{n}@example.org") for n in range(100)]
    headrace_run(worker)
    assert receipts[7].result() == "sent to 7@example.org"
    counts = emails.counts()
    assert (counts.completed, counts.present, counts.lost) == (100, 0, 0)


def test_each_test_has_an_empty_server(headrace_server, headrace_url):
    assert headrace_server.path in headrace_url
    assert emails.counts().enqueued == 0


def test_what_is_delayed(headrace_run, headrace_travel):
    receipt = welcome("ada@example.org", delay=3600)
    headrace_travel(3600)
    headrace_run(worker)
    assert receipt.result() == "sent to ada@example.org"


def test_a_failure(headrace_run):
    welcome("ada")
    with pytest.raises(ValueError, match="not an address: ada"):
        headrace_run(worker)
    assert emails.counts().delayed == 1


def test_one_that_fails_for_its_handler(headrace_run):
    welcome("nowhere")
    headrace_run(worker)
