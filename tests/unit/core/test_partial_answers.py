"""Scripts that answer a part of a call, at a limit of time or at about 1 MiB of jobs. The caller
asks for the rest."""

from __future__ import annotations

from typing import Any

from attrs import evolve
from tenacity import wait_fixed

from headrace import Job, Retry
from headrace._core.effects import HeldJob, Phase, Send
from headrace._core.flows.consumer import FlowConsumer
from headrace._core.queue import schedules
from headrace._core.verdicts import Settlement
from headrace._core.worker.fetch import fetch
from headrace._model.codec import BytesCodec
from headrace._model.settings import HandlerSettings, QueueSettings
from headrace._protocol.features.flows.ops import Advance, FlowOps
from headrace._protocol.features.schedules import DueSchedules
from headrace._protocol.limits import BYTES_PER_SCRIPT
from headrace._protocol.op import TooLarge
from tests.support.facts import each
from tests.unit.core.test_calls import OPS, Stage
from tests.unit.core.test_roles import Hand, noted


def flow_consumer(*sizes: int) -> FlowConsumer:
    """Return a consumer with a step to take for jobs of these sizes."""
    flow = FlowOps("shop", "headrace", settings=QueueSettings(result_ttl=60))
    ops = flow.declare("a", [], [], {}).ops
    handler = HandlerSettings("shop/a", print, 10, Retry(), None, QueueSettings(), BytesCodec())
    consumer = FlowConsumer(ops, handler, "w", wait_fixed(7), flow=flow)
    consumer.registration.registered, consumer.phase = True, Phase.DRAINING
    for number, size in enumerate(sizes):
        held = HeldJob(
            Job(f"r{number}", b"x", "shop/a"), consumer.name, f"{number}-0", 1, 1, size=size
        )
        step = Advance(
            flow.run(f"r{number}"), ["move", f"r{number}", "a", f"{number}-0", 1, 0, "", "", "", 0]
        )
        consumer.jobs.done.append(Settlement("step", held, step=step))
    return consumer


def runs(effect: Any) -> list[list[str]]:
    """Return the runs of the sent steps, script by script."""
    assert isinstance(effect, Send)
    return [[key.rpartition(":")[2] for key in op.keys if ":flow:" in key] for op in effect.ops]


def test_steps_that_a_script_had_no_room_for_are_taken_in_the_next() -> None:
    consumer = flow_consumer(*[10] * 4)
    hand = Hand(fetch(consumer))
    assert runs(hand.go()) == [["r0", "r1", "r2", "r3"]]
    assert runs(hand.go([[True, False]])) == [["r2", "r3"]]
    assert len(consumer.kept()) == 2
    assert runs(hand.go([[True]])) == [["r3"]]
    assert hand.go([[True]]) is None
    assert (consumer.jobs.lost, consumer.kept()) == (1, [])


def test_steps_of_large_jobs_go_apart() -> None:
    hand = Hand(
        fetch(flow_consumer(10, BYTES_PER_SCRIPT, 10, BYTES_PER_SCRIPT // 2, BYTES_PER_SCRIPT // 2))
    )
    assert runs(hand.go()) == [["r0"], ["r1"], ["r2", "r3"], ["r4"]]


@each(
    ("result", "child"),
    [(b"r" * 100, b"c"), (b"r" * 100, b"c" * 100), (b"r", b"c" * 100)],
    ids=["result", "both", "child"],
)
def test_a_step_whose_result_the_server_refuses_goes_without(result: bytes, child: bytes) -> None:
    """The handler does not run again. Children that are too large make the step fail, because the
    flow needs them."""
    consumer = flow_consumer(10)
    consumer.phase = Phase.RUNNING
    settlement = consumer.jobs.done.pop()
    step = evolve(
        settlement.step, args=[*settlement.step.args[:5], 1, result, "", "fail", 1, child]
    )
    consumer.jobs.done.append(evolve(settlement, step=step))
    hand, notes = Hand(fetch(consumer)), noted(consumer)
    hand.go()
    error = TooLarge("a value of 100 bytes")
    error.limit = 99
    op = hand.thrown(error).ops[0]
    if len(child) < 100:
        assert op.args[-10:] == ["r0", "a", "0-0", 1, 0, "", "", "fail", 1, child]
        assert notes == [("result_dropped", "0-0", error)]
    else:
        assert op.name == "retry"
        assert [event for event, *_ in notes] == ["settled"]


def test_schedules_are_read_page_by_page_and_what_is_left_of_their_ticks_is_due_at_once() -> None:
    pages = {
        "": DueSchedules(2000, 5.0, [("s", 2000, "every 500", "once")], "2000 s"),
        "2000 s": DueSchedules(2001, 5.0, [("t", 2000, "every 500", "once")]),
    }
    for answers, wait in (({"s": 1, "t": 0}, 0.499), ({"s": 2, "t": 1}, 0.0)):
        stage = Stage(
            lambda op, answers=answers: (
                pages[op.args[1]] if op.name == "schedules" else answers[op.args[0]]
            )
        )
        assert stage.play(schedules.run_due_schedules(OPS)).wait == wait
        assert stage.names == ["schedules", "schedules", "tick", "tick"]
    stage = Stage(lambda op: pages[op.args[1]])
    assert [schedule.name for schedule in stage.play(schedules.schedules(OPS))] == ["s", "t"]
