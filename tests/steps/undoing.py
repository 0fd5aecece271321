"""Random handlers whose runs are undone, and the laws of that. Their workers die, or lose the
lease, between any two scripts.

A story is one job. Its handler takes steps of which some fail, some are caught, and some call
`job.undo()`. The real `Run` and `buried` drive it against a server, delivery by delivery, until it
completes or is a dead letter. Then an operator mends all errors and redrives it, until it has
completed. Laws are checked as a step's function or an undo is called, by what the server has
recorded then, and at each end.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any

from attrs import define, evolve, field

from headrace import DeadLetter, NewJob
from headrace._codecs.recorded import Recorded
from headrace._core.effects import Call, HeldJob, Send, Sleep
from headrace._core.steps.run import Callbacks, Run
from headrace._model.settings import QueueSettings
from headrace._model.steps import Record
from headrace._net.sync.steps import Steps
from headrace._net.sync.undoing import buried
from headrace._protocol import admin_ops
from headrace._protocol.features.runs import ops as step_ops
from headrace._protocol.keys import Keys
from headrace._protocol.op import Op
from headrace._protocol.queue_ops import Ops
from headrace.errors import InDoubt, RunLost, describe_error
from tests.support.servers import Server

HOUR = 3600.0
ATTEMPTS = 2
ALWAYS = 99  # times that a function fails
DELIVERIES_AT_MOST = 200


class Died(BaseException):
    """Raised in place of a script, and in all that follow, by a worker that has died."""


@define
class Item:
    """A step of a handler."""

    name: str
    undo: bool
    once: bool
    fails: int  # how often its function still fails
    caught: bool
    undoes: bool  # whether the handler then calls `job.undo()`
    undo_fails: int


def item_of(dice: Random, name: str) -> Item:
    caught = dice.random() < 0.4
    return Item(
        name,
        undo=dice.random() < 0.7,
        once=dice.random() < 0.15,
        fails=dice.choice([0, 0, 0, 1, ALWAYS]),
        caught=caught,
        undoes=caught and dice.random() < 0.5,
        undo_fails=dice.choice([0, 0, 0, 1, ALWAYS]),
    )


@define(eq=False)
class Delivery:
    """One delivery, whose worker may die or lose its lease."""

    claim: HeldJob
    run: Run = field(init=False)
    undone: bool = False  # `job.undo()` has returned
    dead: bool = False
    zombie: bool = False


@define(eq=False)
class Story:
    """A job from its enqueue to its completion."""

    server: Server
    seed: int
    ops: Ops = field(factory=lambda: Ops(Keys.of("q", "headrace"), QueueSettings()))
    values: Recorded = field(init=False)
    redis: Any = field(init=False)
    dice: Random = field(init=False)
    items: list[Item] = field(init=False)
    end: str = field(init=False)  # how the handler ends behind its steps
    calls: Counter[str] = field(factory=Counter[str])  # of functions, in this life of the run
    failed: set[str] = field(factory=set[str])  # steps whose undos have failed
    reason: str = ""  # for which the run died first
    sent: int = 0
    mended: bool = False

    def __attrs_post_init__(self) -> None:
        self.dice = Random(self.seed)
        self.items = [item_of(self.dice, name) for name in "abcdef"[: self.dice.randint(2, 6)]]
        self.end = self.dice.choice(["return", "fail", "dead"])
        self.values = Recorded(self.ops.bound)
        self.redis = self.server.client()

    # -- parts -------------------------------------------------------------------------------------

    def send(self, op: Op[Any]) -> Any:
        self.sent += 1
        return op.decode(self.redis.execute_command(*op.wire("EVAL", "story", str(self.sent))))

    def drive(self, delivery: Delivery, call: Call[Any]) -> Any:
        """Run a generator. Its worker may die before or after each script, or lose its lease."""
        answers: Any = None
        while True:
            try:
                effect = call.send(answers)
            except StopIteration as done:
                return done.value
            if isinstance(effect, Sleep):
                answers = None
                continue
            fate = self.dice.random()
            if fate < 0.04 and not delivery.zombie and not self.mended:
                self.send(self.ops.release([delivery.claim]))
                delivery.zombie = True
            if delivery.dead or 0.04 <= fate < 0.08:
                self.dies(delivery)
            assert isinstance(effect, Send)
            answers = [self.send(op) for op in effect.ops]
            if 0.08 <= fate < 0.12:
                self.dies(delivery)

    def dies(self, delivery: Delivery) -> None:
        if not self.mended:
            delivery.dead = True
            raise Died

    def records(self, claim: HeldJob) -> dict[str, Record]:
        return step_ops.own(self.send(step_ops.read(self.ops, claim)))

    # -- the handler -------------------------------------------------------------------------------

    def handle(self, delivery: Delivery, job: Any) -> None:
        for item in self.items:
            undo = partial(self.takes_back, delivery, item) if item.undo else None
            try:
                value = job.step(
                    item.name, partial(self.acts, delivery, item), once=item.once, undo=undo
                )
                assert value == item.name
            except InDoubt:
                raise DeadLetter("doubt") from None
            except AssertionError:
                raise
            except Exception:
                if not item.caught:
                    raise
                if item.undoes and not delivery.undone:
                    job.undo()
                    delivery.undone = True
                    self.all_is_undone(delivery, item)
        if self.end == "fail":
            raise ValueError("the end")
        if self.end == "dead":
            raise DeadLetter("the end")

    def acts(self, delivery: Delivery, item: Item) -> str:
        """Do as the function of a step. It does not run while its run is undone."""
        if not delivery.zombie:
            records = self.records(delivery.claim)
            mode = records.get("")
            assert mode is None or (mode.ended and delivery.undone), f"{item.name} runs: {mode}"
            assert item.name not in records or item.once, f"{item.name} is recorded"
        self.calls[item.name] += 1
        if item.fails:
            item.fails -= item.fails < ALWAYS
            raise ValueError(item.name)
        return item.name

    def takes_back(self, delivery: Delivery, item: Item, value: str) -> None:
        """Do as an undo. It is that of the last step that can be undone."""
        assert value == item.name
        if not delivery.zombie:
            records = self.records(delivery.claim)
            due = [one for one in records.values() if one.kind == "undoable"]
            last = max(due, key=lambda one: one.number, default=None)
            assert last is not None
            assert last.name == item.name, f"undo of {item.name}, and {last.name} is due"
            assert "" in records
            assert not records[""].ended, "it is not recorded that the run is undone"
        self.calls["-" + item.name] += 1
        if item.undo_fails:
            self.failed.add(item.name)
            item.undo_fails -= item.undo_fails < ALWAYS
            raise OSError("-" + item.name)

    def all_is_undone(self, delivery: Delivery, last: Item) -> None:
        """Check that `job.undo()` has undone the steps before it. In a replay there may be later
        ones."""
        if delivery.zombie or delivery.run.undos.dies(delivery.run):
            return
        records = self.records(delivery.claim)
        before = self.items[: self.items.index(last)]
        left = [
            one.name for one in before if getattr(records.get(one.name), "kind", "") == "undoable"
        ]
        assert not left, f"{left} after job.undo()"

    # -- deliveries --------------------------------------------------------------------------------

    def deliver(self) -> str:
        """Deliver the job once. Return its state."""
        grant = self.send(self.ops.lease("ann", 1, ttl=HOUR, kind=HeldJob))
        assert grant is not None
        assert len(grant.claims) == 1, "the job is gone"
        (claim,) = grant.claims
        delivery = Delivery(claim)
        drive = partial(self.drive, delivery)
        run = delivery.run = Run(
            self.ops, self.values, claim, Callbacks(self.departs), handled=True
        )
        object.__setattr__(claim.job, "_steps", Steps(run, drive))
        error: BaseException | None = None
        try:
            self.handle(delivery, claim.job)
        except BaseException as raised:
            error = raised
        if isinstance(error, AssertionError):
            raise error
        if not delivery.dead:
            error = self.left(delivery, drive, error)
        if delivery.dead or delivery.zombie:
            if not delivery.zombie:
                self.send(self.ops.release([claim]))
            return "waiting"
        assert not run.lost, "the lease was held"
        return self.settled(delivery, error)

    def left(self, delivery: Delivery, drive: Any, error: BaseException | None) -> Any:
        run = delivery.run

        def judged(wrong: BaseException | None, _result: Any, anew: bool) -> str | None:
            attempt = 1 if anew else delivery.claim.job.attempt
            if isinstance(wrong, DeadLetter):
                return str(wrong.reason)
            return None if wrong is None or attempt < ATTEMPTS else describe_error(wrong)

        run.callbacks = evolve(run.callbacks, judged=judged)
        with suppress(Died):
            error = drive(run.leave(error))
            if run.undos.concern(run, error):
                error = buried(run, drive, error, None)
        if isinstance(error, AssertionError):
            raise error
        return error

    def departs(self, claim: Any) -> None:
        claim.ended = True

    def settled(self, delivery: Delivery, error: BaseException | None) -> str:
        claim, records = delivery.claim, self.records(delivery.claim)
        if error is None:
            mode = records.get("")
            assert mode is None or mode.ended, "it completes, and is not undone"
            self.send(self.ops.complete([claim]))
            return "completed"
        assert not isinstance(error, (RunLost, Died)), repr(error)
        reason = str(error.reason) if isinstance(error, DeadLetter) else describe_error(error)
        if isinstance(error, DeadLetter):
            self.send(self.ops.dead_letter([(claim, reason)]))
        else:
            self.send(self.ops.retry([(claim, 0.0, 1, reason)], max_attempts=ATTEMPTS))
        if not self.redis.xlen(self.ops.keys.key("dead")):
            return "waiting"
        self.buried(reason, records)
        return "dead"

    def buried(self, reason: str, records: dict[str, Record]) -> None:
        """Check a new dead letter. It is undone, unless an undo has failed, and its reason says
        so."""
        ((_, fields),) = self.redis.xrange(self.ops.keys.key("dead"))
        due = [one for one in records.values() if one.kind == "undoable"]
        names = [one.name for one in sorted(due, key=lambda one: -one.number)]
        left = f"; not undone: {', '.join(names)}" if names else ""
        assert fields[b"reason"].decode() == reason + left
        doubt = "doubt" in reason  # another way than before, which may not come to all undos
        assert not names or doubt or names[0] in self.failed, f"{names} are not undone: {reason}"
        if "" not in records:
            assert not any(name[0] == "-" for name in self.calls), "undone without a record"
            return
        (why,) = [self.values.decoded("", records[""].value)] if records[""].value else [""]
        self.reason = self.reason or why
        if records[""].kind == "dying":
            assert why == self.reason, f"it died of {self.reason}, and now of {why}"
            assert self.reason in reason

    # -- the story ---------------------------------------------------------------------------------

    def tell(self) -> None:
        """Run it to its end."""
        with self.redis:
            self.redis.flushall()
            self.runs()

    def runs(self) -> None:
        self.send(self.ops.beat("ann", HOUR, register=True))
        self.send(self.ops.enqueue([self.ops.item(NewJob(b"x", id="i"))]))
        state = self.to_its_end()
        for _ in range(3):
            if state == "completed":
                break
            state = self.redriven()
        assert state == "completed"
        assert not self.redis.exists(self.ops.keys.key("steps"))

    def to_its_end(self) -> str:
        for _ in range(DELIVERIES_AT_MOST):
            if (state := self.deliver()) != "waiting":
                return state
        raise AssertionError("it does not end")

    def redriven(self) -> str:
        """Mend all errors and redrive the dead letter. It goes on with its undos, or begins
        again."""
        self.mended = True
        self.items = [evolve(one, fails=0, undo_fails=0, once=False) for one in self.items]
        self.end = "return"
        kept = self.letter()
        died = any(one.kind == "dying" for one in kept.values())
        undone = died and not any(one.kind == "undoable" for one in kept.values())
        doubt = any(one.kind == "once" and not one.ended for one in kept.values())
        step = next((one.name for one in kept.values() if one.kind == "once"), "") if doubt else ""
        self.send(admin_ops.redrive(self.ops, "-", ["i"], from_step=step))
        again = undone or bool(step)
        if again:
            self.calls.clear()
            self.reason = ""
        state = self.to_its_end()
        if again:
            assert state == "completed", "it was to begin again"
            assert not any(name[0] == "-" for name in self.calls)
            went_on = any(one.kind == "undoing" for one in kept.values())  # behind `job.undo()`
            gone = [] if went_on else [one.name for one in kept.values() if one.kind == "undone"]
            for name in gone:
                assert self.calls[name] == 1, f"{name} was undone, and is not taken again"
        elif died:
            assert state == "dead", "it was to be undone"
        return state

    def letter(self) -> dict[str, Record]:
        ((entry, _),) = self.redis.xrange(self.ops.keys.key("dead"))
        args = ["\n" + entry.decode(), ""]
        return step_ops.own(self.send(self.ops.op("steps", args, step_ops.records)))
