"""A declared flow, and its operations as `Op`s. They are pure, like `queue_ops`."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Hashable, Mapping, Sequence
from copy import copy
from functools import partial
from typing import Any

from attrs import evolve, field, frozen

from headrace._model.checks import Context, check_size, limit_batch, millis, text
from headrace._model.codec import BytesCodec, Codec, bound, chosen, grouped, untyped
from headrace._model.flow import (
    ChildView,
    FanOut,
    FlowState,
    Next,
    Results,
    RunView,
    children_of,
)
from headrace._model.job import Claim, Job, NewJob, is_new
from headrace._model.policy import unconditional
from headrace._model.receipt import Receipt
from headrace._model.settings import QueueSettings
from headrace._model.shards import ShardRow, Table
from headrace._model.state import Counts
from headrace._protocol.features import results as result_ops
from headrace._protocol.features.flows.rows import (
    advanced,
    flow_cursor,
    flow_rows,
    flow_state,
    passing,
)
from headrace._protocol.keys import FLOW, Keys, job_id
from headrace._protocol.limits import BYTES_PER_SCRIPT, JOBS_PER_SCRIPT, REWRITES_PER_SCRIPT
from headrace._protocol.op import Arg, Op
from headrace._protocol.queue_ops import Ops, refuse_elsewhere
from headrace._protocol.replies import Verdicts, ids
from headrace._protocol.script import script
from headrace._protocol.shards import ShardOps, shard_ops
from headrace.errors import ConfigurationError

CHILDREN_AT_MOST = JOBS_PER_SCRIPT  # of one fan-out: one script creates them
STEPS_PER_SCRIPT = REWRITES_PER_SCRIPT // 2  # each step writes a run and a job
LEADS = "leads_to"  # an option that the workers of a stage declare: see `FlowOps.leads`
FAILED_CHOICES = ("fail", "continue", "cancel")
DEFAULTS = QueueSettings()
_PARTS = [
    "jobs",
    "wake",
    "ids",
    "leases",
    "released",
    "delayed",
    "bodies",
    "blocked",
    "dead",
    "stats",
    "flows",
    "events",
    "control",
    "limited",
    "asleep",
    "steps",
    "held",
    "slots",
    "settled",
    "stopped",
    "cancels",
    "ends",
    "ended",
]
_NO_RESULT = (0, "")
_BEGIN = [
    "jobs",
    "wake",
    "ids",
    "released",
    "delayed",
    "bodies",
    "stats",
    "flows",
    "events",
    "cancels",
]


@frozen
class Stage:
    name: str
    ops: Ops
    next: tuple[str, ...]
    children: tuple[str, ...]
    options: Mapping[str, Any]
    functions: list[Callable[..., Any]] = field(factory=list[Callable[..., Any]])


@frozen
class Advance:
    run: str  # the key of its run
    args: Sequence[Arg]  # one item of `FlowOps.advance`
    children: int = 0

    def without_result(self) -> Advance:
        if self.args[0] != "move":
            return self
        name, job, stage, entry, count, _, _, *rest = self.args
        return evolve(self, args=[name, job, stage, entry, count, *_NO_RESULT, *rest])


class FlowOps:
    def __init__(
        self,
        name: str,
        namespace: str,
        codec: Codec[Any] | None = None,
        lookup: Sequence[str] = (),
        settings: QueueSettings = DEFAULTS,
        servers: Callable[[], frozenset[Hashable]] = frozenset,
    ) -> None:
        self.keys = Keys.of(name, namespace)
        if self.keys.group != name:
            raise ConfigurationError(
                f"flow name {name!r}: a flow is a group of queues, give its name without a '/'"
            )
        if isinstance(lookup, str) or not isinstance(lookup, Sequence):
            raise TypeError(
                f"lookup must be a list of attribute names, not {type(lookup).__name__}"
            )
        self.name = name
        self.namespace = namespace
        self.codec = grouped(chosen(codec))
        self.lookup = tuple(map(_attribute, lookup))
        self.settings = settings
        self.servers = servers
        self.stages: dict[str, Stage] = {}

    # -- declaring ---------------------------------------------------------------------------------

    def declare(
        self, name: str, following: object, children: object, options: Mapping[str, Any]
    ) -> Stage:
        short = self._short(name)
        # refuses an invalid name, or a name in another group
        keys = Keys.of(f"{self.name}/{short}", self.namespace)
        if short in self.stages:
            raise ConfigurationError(f"stage {short!r} of flow {self.name!r} is declared already")
        ops = Ops(keys, self.settings, self.codec, self.namespace, self.servers)
        stage = Stage(
            short, ops, self._names("next", following), self._names("children", children), options
        )
        self.stages[short] = stage
        return stage

    def _names(self, argument: str, value: object) -> tuple[str, ...]:
        names: Any = [value] if isinstance(value, str) else value
        if not isinstance(names, (list, tuple)):
            raise TypeError(
                f"{argument} must be the name of a stage, or a list of names, not {value!r}"
            )
        every: Any = names  # pyright: ignore[reportUnknownVariableType]
        return tuple(map(self._short, every))

    def _short(self, name: object) -> str:
        return text("a stage's name", name).removeprefix(f"{self.name}/")

    def declared(self) -> dict[str, Stage]:
        """Return all stages. Raises `ConfigurationError` without stages, or if a stage leads to an
        undeclared one."""
        if not self.stages:
            raise ConfigurationError(
                f"flow {self.name!r} has no stages: declare one with @flow.stage(name)"
            )
        for stage in self.stages.values():
            for other in (*stage.next, *stage.children):
                if other not in self.stages:
                    raise ConfigurationError(
                        f"stage {stage.name!r} leads to {other!r}, which flow {self.name!r} lacks"
                    )
        return self.stages

    def at(self, part: ShardOps) -> FlowOps:
        assert part.table is not None  # noqa: S101
        return self.in_shard(part.shard, part.table)

    def in_shard(self, shard: ShardRow, table: Table) -> FlowOps:
        made = copy(self)
        made.keys = self.keys.at(shard)
        made.stages = {
            name: evolve(stage, ops=shard_ops(stage.ops, table, shard))
            for name, stage in self.stages.items()
        }
        return made

    # -- operations --------------------------------------------------------------------------------

    def run(self, name: str) -> str:
        return self.keys.flow(run_of(name))

    def _op(
        self, name: str, others: Sequence[str], args: Sequence[Arg], decode: Callable[[Any], Any]
    ) -> Op[Any]:
        source = script(name)
        index = [self.keys.key("index")] if "index" in source.key_names else []
        return Op(
            name,
            source,
            [*index, *others],
            args,
            decode,
            self.keys.lane("") if source.recorded else "",
        )

    def first(self, stage: str | None) -> str:
        stages = self.declared()
        return next(iter(stages)) if stage is None else self._known("stage", stage)

    def start(
        self,
        job: NewJob[Any],
        attributes: Mapping[str, Any] | None = None,
        stage: str | None = None,
        context: Context | None = None,
    ) -> Op[Receipt]:
        first = self.first(stage)
        name = new_run() if job.id is None else run_id(job.id)
        ops = self.stages[first].ops
        item = ops.item(evolve(job, id=name), context)
        assert isinstance(item, tuple)  # noqa: S101 - it has an id
        checked = _attributes(attributes)
        members = [
            f"{key}\n{one}\n{name}"
            for key, value in checked.items()
            if key in self.lookup
            for one in ([value] if isinstance(value, str) else value)
        ]
        args: list[Arg] = [
            name,
            first,
            item[1],
            json.dumps(checked, ensure_ascii=False, separators=(",", ":")),
            len(members),
            *members,
            *item[2],
            FLOW,
            self.keys.flow(name),
        ]
        keys = [self.keys.flow(name), *map(ops.keys.key, _BEGIN)]
        return self._op("flow_start", keys, args, lambda reply: Receipt(name, reply == 1))

    def step(
        self,
        claim: Claim,
        outcome: Any,
        context: Context | None = None,
        keep: Callable[[Any], bytes | None] | None = None,
    ) -> Advance | None:
        """Translate a stage's *outcome* to a step. Returns `None` for a job of no run. *context*
        has trace headers for its children. *keep* encodes its result, and returns `None` if there
        is none to keep.
        """
        job = claim.job
        stage = self.declared().get(job.queue.removeprefix(f"{self.name}/"))
        if stage is None or not job.queue.startswith(f"{self.name}/"):
            raise ConfigurationError(f"queue {job.queue!r} is no stage of flow {self.name!r}")
        ours = self.has(job)
        if isinstance(outcome, (Next, FanOut)) and not ours:
            raise ConfigurationError(
                f"job {job.id!r} belongs to no run of flow {self.name!r}: there is nowhere to go"
            )
        if not ours:
            return None
        target = next(iter(stage.next), "")
        failed = ""
        children = []
        result = outcome
        if isinstance(outcome, Next):
            result = outcome.result
            target = (
                ""
                if outcome.stage is None
                else self._leads("Next", stage.name, stage.next, outcome.stage)
            )
        elif isinstance(outcome, FanOut):
            result = outcome.result
            failed = outcome.failed
            if failed not in FAILED_CHOICES:
                raise ValueError(
                    f"FanOut: failed={failed!r}: give one of {', '.join(FAILED_CHOICES)}"
                )
            if outcome.join is not None:
                target = self._leads("FanOut: join", stage.name, stage.next, outcome.join)
            children = self._children(stage, job.id, outcome, context)
        args: list[Arg] = ["move", job.id, stage.name, claim.entry, claim.count]
        kept = (
            None
            if result is None
            else (keep or partial(result_ops.result_bytes, stage.ops))(result)
        )
        args += _NO_RESULT if kept is None else (1, kept)
        args += (target, failed, len(children))
        for child in children:
            args += child
        check_size("FanOut", args)
        return Advance(self.run(job.id), args, len(children))

    def has(self, job: Job) -> bool:
        """Check that a stage's job belongs to a run, because a foreign producer may write any
        header, and any id."""
        try:
            return job.headers.get(FLOW) == self.run(job.id)
        except ValueError:
            return False

    def _children(
        self, stage: Stage, parent: str, fan: FanOut, context: Context | None
    ) -> list[list[Arg]]:
        every = children_of(fan)
        default = (
            fan.stage if fan.stage is not None or len(stage.children) != 1 else stage.children[0]
        )
        made: list[list[Arg]] = []
        names: set[str] = set()
        for number, one in enumerate(every):
            job = unconditional(one) if is_new(one) else NewJob(one)
            name = str(number) if job.id is None else job_id(job.id)
            if "/" in name:
                raise ValueError(f"FanOut: child {name!r}: a child's name may not hold '/'")
            if name in names:
                raise ValueError(f"FanOut: two children are called {name!r}")
            names.add(name)
            job_id(f"{parent}/999999/{name}")  # the longest id that the child may get
            where = default if job.queue is None else job.queue
            if where is None:
                raise ValueError(f"FanOut: child {name!r} has no stage to begin in: give stage=")
            first = self._leads("FanOut", stage.name, stage.children, where, "children")
            ops = self.stages[first].ops
            refuse_elsewhere(ops, job)
            item = ops.item(
                NewJob(job.payload, name, job.headers, job.delay, job.priority), context
            )
            assert isinstance(item, tuple)  # noqa: S101 - it has an id
            # without the id, which the script knows
            fields = [*item[2][:2], *item[2][4:], FLOW, self.run(parent)]
            made.append([name, first, item[1], len(fields), *fields])
        instead = "let some of the children fan out in turn, or give references to what is large"
        limit_batch(
            "FanOut", [child[4:] for child in made], CHILDREN_AT_MOST, BYTES_PER_SCRIPT, instead
        )
        return made

    def _known(self, what: str, name: str) -> str:
        short = self._short(name)
        if short not in self.stages:
            raise ValueError(
                f"{what}: flow {self.name!r} has no stage {short!r}; it has {', '.join(self.stages)}"
            )
        return short

    def _leads(
        self, what: str, stage: str, declared: Sequence[str], name: str, argument: str = "next"
    ) -> str:
        short = self._known(what, name)
        if short not in declared:
            raise ValueError(
                f"{what}: stage {stage!r} does not lead to {short!r}: declare it in its {argument}="
            )
        return short

    def event(self, stage: str, member: str | bytes) -> Advance:
        """Make the step for a row of `events`. A member of `flows` that can't be the id of a job is
        removed."""
        try:
            name = member.decode() if isinstance(member, bytes) else member
            return Advance(self.run(name), ["event", name, stage])
        except ValueError:
            return Advance(self.keys.flow(""), ["forget", member, stage])

    def cancelling(self, name: str) -> Advance:
        return Advance(self.run(name), ["cancel", job_id(name)])

    def advance(self, steps: Sequence[Advance], worker: str = "") -> Op[Verdicts]:
        """Take at most `STEPS_PER_SCRIPT` steps with `CHILDREN_AT_MOST` children. *worker*, unless
        '', fences them."""
        stages = self.declared().values()
        args: list[Arg] = [
            worker,
            millis(self.settings.result_ttl),
            self.settings.dead_limit,
            len(stages),
            *(arg for stage in stages for arg in (stage.name, next(iter(stage.next), ""))),
            *(arg for step in steps for arg in step.args),
        ]
        return self._op(
            "flow_advance",
            [
                *(stage.ops.keys.key(part) for stage in stages for part in _PARTS),
                *(step.run for step in steps),
            ],
            args,
            advanced(self.name),
        )

    def events(self) -> Op[list[Advance]]:
        """Fetch steps for jobs of this flow that were completed, cancelled, redriven, or died, by
        calls outside it."""
        stages = self.declared()
        names = list(stages)
        keys = [stage.ops.keys.key("flows") for stage in stages.values()]

        def decode(reply: Any) -> list[Advance]:
            pairs: Any = zip(reply[::2], reply[1::2], strict=True)
            return [self.event(names[int(number) - 1], name) for number, name in pairs]

        return self._op("flow_events", keys, [STEPS_PER_SCRIPT], decode)

    def read(
        self, names: Sequence[str], begun: Any = None, *, strict: bool = False
    ) -> Op[tuple[list[FlowState | None], Any]]:
        """Fetch the states of jobs, at most `STEPS_PER_SCRIPT`.

        The answer covers the first jobs, and may end within one. Pass that job as *begun* to the
        next call. A run whose key another program wrote is unknown. If *strict*, it raises
        `ReplyError`.
        """
        stages = self.declared()

        def decode(reply: Any) -> tuple[list[FlowState | None], Any]:
            rows, rest = flow_rows(reply, begun)
            states = [flow_state(name, row, strict) for name, row in zip(names, rows, strict=False)]
            return [self._readable(state) for state in states], rest

        args: list[Arg] = [len(stages), flow_cursor(begun), 0, *stages, *names]
        return self._op("flow_read", [self.run(n) for n in names], args, decode)

    def _readable(self, state: FlowState | None) -> FlowState | None:
        if state is None or isinstance(self.codec, BytesCodec):
            return state
        decode = untyped(bound(self.codec, self.name, self.namespace)).decode
        return evolve(
            state, results=Results(state.results, decode), children=Results(state.children, decode)
        )

    def whole_run(self, name: str, begun: Any = None) -> Op[tuple[RunView | None, Any]]:
        """Fetch the state of one job with its way, as far as one answer goes. *begun* is as in
        `read`."""
        stages = list(self.declared())

        def decode(reply: Any) -> tuple[RunView | None, Any]:
            rows, rest = flow_rows(reply, begun)
            row = rest or rows[0]
            state = flow_state(name, row)
            if state is None:
                return None, None
            (began, fanned, *left), children = passing(name, row)
            ends = {stage: at for stage, at in zip(stages, left, strict=True) if at is not None}
            return RunView.of(
                state, began, ends, [ChildView(*child[:3], fanned, child[3]) for child in children]
            ), rest

        args: list[Arg] = [len(stages), flow_cursor(begun), 1, *stages, name]
        return self._op("flow_read", [self.run(name)], args, decode)

    def found(self, name: str, value: str, cursor: str) -> Op[tuple[str, list[str]]]:
        if name not in self.lookup:
            raise ValueError(
                f"{name!r} is not looked up by: flow {self.name!r} declares lookup={list(self.lookup)}"
            )
        return self._op(
            "flow_find", [], [f"{name}\n{_value(name, value)}", cursor, JOBS_PER_SCRIPT], ids
        )

    def leads(self, queue: str) -> str:
        """Name the stages to which jobs of the stage *queue* go on, as `pack +item`. A `+` stands
        before stages of children. `-` stands for no stage.
        """
        stage = self.stages[queue.removeprefix(f"{self.name}/")]
        return " ".join([*stage.next, *(f"+{name}" for name in stage.children)]) or "-"

    def drawing(self, counts: Mapping[str, Counts] | None) -> str:
        states = ("waiting", "parked", "leased", "delayed", "blocked", "dead")
        number = {name: f"s{i}" for i, name in enumerate(self.declared())}
        lines = ["flowchart LR"]
        for name in self.stages:
            now = (
                [f"{s} {getattr(counts[name], s)}" for s in states if getattr(counts[name], s)]
                if counts
                else []
            )
            lines.append(f'  {number[name]}["{"<br/>".join([name, *now])}"]')
        for stage in self.stages.values():
            here = number[stage.name]
            lines += [
                f"  {here} {'-.->' if i else '-->'} {number[other]}"
                for i, other in enumerate(stage.next)
            ]
            lines += [f"  {here} ==>|fan-out| {number[other]}" for other in stage.children]
        return "\n".join(lines) + "\n"


def new_run() -> str:
    return secrets.token_hex(12)


def run_of(name: str) -> str:
    return job_id(name).partition("/")[0]


def run_id(value: object) -> str:
    """Return *value* if it is a valid id of a run, at most 200 bytes without `/`. Raises
    `TypeError` or `ValueError`.
    """
    name = job_id(value)
    if "/" in name or len(name.encode()) > 200:
        raise ValueError(
            f"id {name!r}: a run's id is 1-200 bytes of UTF-8 without '/' and control characters"
        )
    return name


def _attribute(name: object) -> str:
    if not isinstance(name, str):
        raise TypeError(f"attributes: names must be str, not {type(name).__name__}")
    return _plain(f"attribute {name!r}", name)


def _plain(what: str, text: str) -> str:
    try:
        return job_id(text)
    except ValueError:
        raise ValueError(f"{what}: use 1-500 bytes of UTF-8 without control characters") from None


def _value(name: str, value: object) -> str:
    return _plain(f"attribute {name!r}: {value!r}", text(f"attribute {name!r}", value))


def _attributes(given: object) -> dict[str, str | list[str]]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise TypeError(
            f"attributes must map str to str or a list of str, not {type(given).__name__}"
        )
    checked: dict[str, str | list[str]] = {}
    items: Any = given  # pyright: ignore[reportUnknownVariableType]
    for key, value in items.items():
        name = _attribute(key)
        if isinstance(value, (list, tuple)):
            values: Any = value  # pyright: ignore[reportUnknownVariableType]
            checked[name] = [_value(name, one) for one in values]
        else:
            checked[name] = _value(name, value)
    return checked
