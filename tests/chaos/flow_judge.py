"""The judge of the flow's runs. It reads the log and the hashes that keep the runs.

Complaints, besides those of the judge:

    astray     a job of a run that goes on is in no queue, or waits for a wrong number of children
    orphan     a child goes on though its run was cancelled
    join       the last stage saw other children than there were, or ran not once
    end        a run ended otherwise than it was made to
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import redis
from attrs import define, field

from tests.chaos.flow_load import FLOW, STAGES, Plan, value

BASE = f"headrace:{{{FLOW}}}:{FLOW}"

# One instant: what runs know against what is in the queues. Answers {kind, what}..., and the runs
# by state.
RUNS = """
local wrong, states = {}, {}
local function say(kind, what) if #wrong < 20 then wrong[#wrong + 1] = {kind, what} end end
local base = KEYS[1]
for _, key in ipairs(redis.call('KEYS', string.gsub(base, '[{}]', '?') .. ':flow:*')) do
  local state, name, run = redis.call('HGET', key, 'state') or 'none', string.match(key, 'flow:(.*)$'), {}
  states[state] = (states[state] or 0) + 1
  local all = (state == 'running' or state == 'cancelled') and redis.call('HGETALL', key) or {}
  for i = 1, #all, 2 do run[all[i]] = all[i + 1] end
  for what, at in pairs(run) do
    local id, how, stage = string.match(what, '^at:(.*)$'), string.match(at, '^(%a+) (%S+)')
    if id and (how == 'active' or how == 'blocked') then
      local queue = base .. '/' .. stage .. ':'
      local score = math.floor(tonumber(redis.call('ZSCORE', queue .. 'flows', id) or -1) / 2 ^ 50)
      local there = redis.call('HGET', queue .. 'ids', id)
      local held = how == 'blocked' and redis.call('HEXISTS', queue .. 'blocked', id) == 1
      if how == 'blocked' and there ~= 'blocked' or how == 'active' and there == 'blocked' then there = nil end
      if score < 0 or score == 0 and not there or score == 0 and how == 'blocked' and not held then
        say('astray', id .. ' ' .. at .. ' ' .. score .. ' ' .. tostring(there))
      end
      if state == 'cancelled' and score == 0 and not string.find(id, '^sick') then say('orphan', id .. ' ' .. at) end
    end
    if id and how == 'blocked' then
      local pending, failed = 0, 0
      for _, child in ipairs(cmsgpack.unpack(run['children:' .. id])) do
        local end_of = string.match(run['at:' .. child] or '', '^%a+')
        if end_of == 'active' or end_of == 'blocked' then pending = pending + 1 end
        if end_of == 'dead' or end_of == 'cancelled' then failed = failed + 1 end
      end
      if pending ~= tonumber(run['pending:' .. id]) or failed ~= tonumber(run['failed:' .. id]) then
        say('astray', id .. ' waits for ' .. run['pending:' .. id] .. ' of ' .. pending .. ', failed ' ..
          run['failed:' .. id] .. ' of ' .. failed)
      end
    end
  end
end
local reply = {}
for state, number in pairs(states) do reply[#reply + 1], reply[#reply + 2] = state, number end
return {wrong, reply}
"""


def sick(name: str) -> bool:
    """Tell whether a stage's job may come again, because it or its run was dead and is redriven."""
    return name.partition("|")[2].startswith("sick")


def created_again(name: str) -> bool:
    """Tell whether a job may be another of the same name with new tokens. That is a child of such a
    run."""
    return sick(name) and "/" in name


@define
class Runs:
    """The part of the judge that knows the course of each run."""

    client: redis.Redis
    complain: Callable[[str, str], None]
    begun: dict[str, bool] = field(factory=dict)  # whether its starter was told that it is there
    # by name: how often somebody was about to cancel it
    asked: Counter[str] = field(factory=Counter)
    states: dict[str, int] = field(factory=dict)

    # -- the log -----------------------------------------------------------------------------------

    def take(self, kind: str, rest: list[str]) -> None:
        """Take one line of the log."""
        match kind, rest:
            case "beg", [_, name]:
                self.begun[name] = False
            case "got", [_, name, added]:
                self.begun[name] = True
                if added != "1":
                    self.complain("twice", f"{name}: its starter was told that it goes on already")
            case "bag", [_, name, result]:
                self.bagged(name, result)

    def known(self, payload: str, name: str) -> None:
        """Record that a process saw a job."""
        if name.partition("|")[2] != payload or payload.partition("/")[0] not in self.begun:
            self.complain("phantom", f"{name}: {payload!r} was never begun")

    def bagged(self, name: str, result: str) -> None:
        """Check the children that the last stage got."""
        plan = Plan.of(name)
        kept, failed = json.loads(result)
        if sorted([*kept, *failed]) != [str(number) for number in range(plan.children)]:
            self.complain("join", f"{name}: {result}")
        if failed and (plan.failed != "continue" and plan.kind != "sick"):
            self.complain("join", f"{name}: {result}, and it goes on")
        for number, one in kept.items():
            child = f"{name}/1/{number}"
            # completed by one who knows nothing of flows
            by_hand = one is None and plan.ends(child) == "weigh"
            if not by_hand and one != value(child.encode()).decode():
                self.complain("join", f"{name}: {child} has {one!r}")

    # -- the server --------------------------------------------------------------------------------

    def sampled(self, reply: Any) -> None:
        """Take the answer of RUNS."""
        wrong, states = reply
        for kind, what in wrong:
            self.complain(kind.decode(), what.decode())
        self.states = {
            state.decode(): number for state, number in zip(states[::2], states[1::2], strict=True)
        }

    def finish(
        self, won: Mapping[str, int], gone: Mapping[str, int], dead: Counter[str], told: Mapping[str, list[bool]]
    ) -> None:  # fmt: skip
        """Judge by name. The arguments are the completed, cancelled and dead jobs, and the answers
        of the calls that cancelled.
        """
        for name, acked in self.begun.items():
            found: Any = self.client.hgetall(f"{BASE}:flow:{name}")
            run = {key.decode(): kept.decode(errors="replace") for key, kept in found.items()}
            if run:
                self.ended(name, run, won, gone, dead, told[f"run|{name}"])
            elif acked:
                self.complain("lost", f"{name}: nothing is known of it")
        for name, verdicts in told.items():
            child = name.removeprefix("run|")
            if (
                any(verdicts)
                and child != name
                and "/" in child
                and not any(gone.get(f"{stage}|{child}") for stage in STAGES)
            ):
                self.complain("claimed", f"cancelled, and is not: {child}")
        for name in won.keys() | gone.keys() | dead.keys():
            if name.partition("|")[2].partition("/")[0] not in self.begun:
                self.complain("phantom", f"{name}: nobody began it")

    def ended(
        self, name: str, run: Mapping[str, str], won: Mapping[str, int], gone: Mapping[str, int],
        dead: Counter[str], told: list[bool],
    ) -> None:  # fmt: skip
        plan, state, clear = Plan.of(name), run["state"], "sick" not in name
        children = [f"{name}/1/{number}" for number in range(plan.children)]
        asked = self.asked[f"run|{name}"]
        if (state == "cancelled") < any(told) or (state == "cancelled") > (
            any(told) or asked > len(told)
        ):
            self.complain(
                "claimed", f"{name} is {state}, who cancelled it were told {told} of {asked}"
            )
        marks = ", ".join(
            f"{what} {at}" for what, at in sorted(run.items()) if what.startswith("at:")
        )
        started = bool(won.get(f"fan|{name}"))
        failures = [
            c
            for c in children
            if any(gone.get(f"{s}|{c}") or dead[f"{s}|{c}"] for s in ("pack", "weigh"))
        ]
        if state != "cancelled":
            doomed = plan.kind == "dead" and plan.where in ("pick", "bill")
            expected = (
                "failed"
                if clear and (doomed or (failures and plan.failed != "continue"))
                else "completed"
            )
            if state != expected or (clear and plan.kind == "dead" and not (doomed or failures)):
                self.complain("end", f"{name} is {state}, not {expected}: {marks}")
        # Each step once: the fan-out, what each child went through, the join, and the end.
        if clear:
            for child in children:
                how, last, *_ = [*run.get(f"at:{child}", "").split(" "), "", ""]
                # One that is to be cancelled, and is completed before, goes nowhere.
                ends = won.get(f"{last}|{child}", 0)
                ends += sum(
                    gone.get(f"{s}|{child}", 0) + dead[f"{s}|{child}"] for s in ("pack", "weigh")
                )
                if ends != started or (how == "done" and last != plan.ends(child)):
                    self.complain("end", f"{child} of {name} ended {ends} times: {marks}")
            ends = won.get(f"bill|{name}", 0) + sum(
                gone.get(f"{s}|{name}", 0) + dead[f"{s}|{name}"] for s in STAGES
            )
            if ends != 1:
                self.complain("end", f"{name} is {state} and ended {ends} times: {marks}")
        if state == "completed":
            if [won.get(f"{stage}|{name}") for stage in ("pick", "bill")] != [1, 1] or not started:
                self.complain("join", f"{name}: {marks}")
            self.bagged(name, run.get(f"result:bill:{name}", "[{},[]]"))
            failed = set(json.loads(run[f"result:bill:{name}"])[1])
            if clear and failed != {child.rpartition("/")[2] for child in failures}:
                self.complain("join", f"{name}: failed {failed}, and these did: {failures}")

    def leftovers(self, keys: list[str]) -> None:
        """Check the remaining keys. Runs are kept for a while, and an empty stage keeps the keys of
        an empty queue."""
        for key in keys:
            part = key.removeprefix(BASE)
            lasting = part.startswith((":flow:", ":lane:")) and self.client.pttl(key) < 0
            if lasting or not part.startswith((":flow:", ":lane:", "/")):
                self.complain("left", f"{part} does not expire")
