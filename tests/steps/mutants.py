"""Bugs planted in the scripts of runs and in `run.py`. The machine must find each."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

from headrace._core.steps import run, undo
from headrace._net.sync import undoing
from tests.support.planted import Edit

UNPROVEN = "if not held_by(jobs, worker, {entry}, {delivery})[1] then return answer"
MUTANTS: dict[str, Sequence[Edit]] = {
    "a zombie's step is recorded": [("step", f"{UNPROVEN}(0) end\n", "")],
    "a zombie waits": [("wait", f"{UNPROVEN}({{0}}) end\n", "")],
    "a zombie suspends the run": [("suspend", f"{UNPROVEN}({{0}}) end\n", "")],
    "a repeated call records again": [
        ("step", "local known = recorded()\nif known then return known end\n", ""),
        ("wait", "local known = recorded()\nif known then return known end\n", ""),
        ("suspend", "local known = recorded()\nif known then return known end\n", ""),
        ("signal", "local known = recorded()\nif known then return known end\n", ""),
    ],
    "a record restores no attempts": [
        (
            "step",
            "if answered > 0 and token > 1 then redis.call('HSET', released, entry, token - 1) end\n",
            "",
        )
    ],
    "a record gives an attempt too many": [
        ("step", "released, entry, token - 1)", "released, entry, token)")
    ],
    "a sleep spends an attempt": [
        ("suspend", "redis.call('HSET', q.released, entries[i], exactly)", "local _ = i")
    ],
    "a sleep has no end": [("suspend", "moment == math.huge and 'inf' or", "moment and 'inf' or")],
    "a run sleeps for as long as its last sleep": [
        ("suspend", "moment = math.min(moment, record[7])", "moment = record[7]")
    ],
    "a signal that came before the suspension wakes nobody": [
        ("suspend", "if wakes_now or open == 0 then moment = now end\n", "")
    ],
    "only the first of several waits counts": [
        (
            "suspend",
            "for i = waits, #ARGV do\n  local record",
            "for i = waits, waits do\n  local record",
        )
    ],
    "a suspended run is handed out before its time": [
        (
            "lease",
            "'ZRANGEBYSCORE', q.asleep, '-inf', q.now,",
            "'ZRANGEBYSCORE', q.asleep, '-inf', '+inf',",
        )
    ],
    "a signal before its wait is lost": [("wait", "if there[2] == 'signal' then", "if false then")],
    "a signal is taken twice": [("*", "  run.open[signal[1]] = nil\n", "")],
    "a wait is not noted": [
        ("wait", "run, open, record, kind == 'wait' or nil)", "run, open, record)")
    ],
    "the second signal stays": [
        ("signal", "if record[2] == 'signal' then return answer(1) end\n", "")
    ],
    "a signal comes after the timeout": [
        ("signal", "if record[7] > 0 and record[7] <= now then return answer(0) end\n", "")
    ],
    "a signal wakes nobody": [
        ("signal", "redis.call('ZADD', asleep, string.format('%.0f', now), entry)\n", "")
    ],
    "an id has the records of an earlier job": [
        ("*", "    runs.forget(steps, id)\n    run = nil\n", ""),
        ("steps", "run.enq ~= '' and enq ~= '' and run.enq ~= enq", "false"),
    ],
    "the records outlive their job": [
        ("complete", "if won > 0 and redis.call('EXISTS', steps) == 1 then", "if false then")
    ],
    "the plain way keeps the records": [
        ("complete", "limited, turns, steps, held, with_ids", "limited, turns, held, with_ids")
    ],
    "a cancelled job leaves its records": [
        ("cancel", "    runs.forget(q.steps, id)\n  end\n", "  end\n")
    ],
    "a dead letter loses its records": [
        (
            "*",
            "    if run then runs.carry(steps, own.id, run, steps, runs.of_letter(entry)) end\n",
            "",
        )
    ],
    "a dead letter that is not kept leaves records": [
        ("*", "    runs.forget(steps, own.id)\n", "")
    ],
    "a redriven run keeps its step": [
        ("redrive", "if record[2] == 'signal' or", "if i == from[1] or record[2] == 'signal' or")
    ],
    "a redriven run forgets what was recorded later": [
        ("redrive", "runs.began_before({i, record}, from)", "i < from[1]")
    ],
    "a redriven run forgets signals": [("redrive", "if record[2] == 'signal' or", "if")],
    "a wait begins with its signal": [
        ("*", "'wait', now, now, attempt", "'wait', signal[3], now, attempt")
    ],
    "a redriven run has too many bytes": [("*", "  run.bytes = 0\n", "")],
    "the waits of a redriven run are closed": [
        ("*", "  run.number, run.open = n, open\n", "  run.number, run.open = n, {}\n")
    ],
    "nobody sweeps up records": [("reclaim", "\nforget_stale_runs(q, 10)\n", "\n")],
    "nobody sweeps up due times": [("reclaim", "\nforget_stale_dues(q, 10)\n", "\n")],
    "a sleeping run counts as parked": [("counts", " and not runs.suspended(owner) then", " then")],
}

# that storms find, and no machine
IN_STORMS: dict[str, Sequence[Edit]] = {
    "a run that is held back spends an attempt": [
        ("hold", "released = '=' .. token, itself = true", "itself = true")
    ],
}

MODULES_IN_STORMS: dict[str, tuple[ModuleType, str, str]] = {
    "a run that dies is not undone": (
        undo,
        "return ends and (self.mode(run) is not None or bool(self.due(run)))",
        "return False",
    ),
}

IN_MODULES: dict[str, tuple[ModuleType, str, str]] = {
    "a step that runs once is recorded at its end only": (
        run,
        "            if once:\n",
        "            if False:\n",
    ),
    "a step in doubt is answered": (
        run,
        "if not record.ended:\n                raise InDoubt",
        "if False:\n                raise InDoubt",
    ),
    "a zombie goes on": (run, "if number <= LOST:", "if number < LOST:"),
    "the records are not read": (run, "if self.claim.token == 1\n", "if self.claim.token\n"),
    "the end of a step is another record": (run, "before.number if before else 0", "0"),
    "a run goes on after it was suspended": (run, "if left is not None:", "if False:"),
    "a step runs after a wait": (run, '(self.leaving if what == "step" else None)', "None"),
    "a wait leaves the steps beside it": (
        run,
        "        while self.branches.running and not self.lost:\n            while",
        "        while False:\n            while",
    ),
    "only the last of several waits counts": (
        run,
        "list(self.branches.waits.values())",
        "list(self.branches.waits.values())[-1:]",
    ),
    "a step of another kind is answered": (run, "if record.kind not in kinds:", "if False:"),
}

UNDONE: dict[str, Sequence[Edit]] = {
    "a zombie's undo is recorded": [("step", f"{UNPROVEN}(0) end\n", "")],
    "a redriven run does not begin again": [("redrive", "stays = runs.anew(rows)", "stays = nil")],
    "a run that is not undone begins again": [
        ("redrive", "return died and runs.to_undo(rows) == '' and", "return died and")
    ],
    "nobody says what is not undone": [
        ("*", "if left ~= '' then reason =", "if false then reason =")
    ],
    "the first step is named first": [
        (
            "*",
            "for i = #rows, 1, -1 do\n    if rows[i][2] == 'undoable'",
            "for i = 1, #rows do\n    if rows[i][2] == 'undoable'",
        )
    ],
    "a step in doubt leaves the undone ones": [
        (
            "redrive",
            "if kind ~= 'dying' and kind ~= 'undone' then others",
            "if kind ~= 'dying' then others",
        )
    ],
}

UNDONE_IN_MODULES: dict[str, tuple[ModuleType, str, str]] = {
    "undos come in the order of the steps": (
        undo,
        "key=lambda one: -one.number",
        "key=lambda one: one.number",
    ),
    "an undo leaves no record": (undo, 'kind="undone", ended=True', 'kind="undoable", ended=True'),
    "a step that failed runs in a replay": (undo, "        self.missed += 1\n", "        return\n"),
    "a replay ends before all undos are known": (
        undo,
        "(self.dies(run) and not self.left(run)) or",
        "self.dies(run) or",
    ),
    "an undoing that was cut off is not gone on with": (
        undo,
        "return not mode.ended",
        "return False",
    ),
    "an undoing never ends": (undo, 'mode is not None and mode.kind == "undoing":', "False:"),
    "steps run behind the beginning of an undoing": (
        undo,
        "(self.asked and not self.dies(run))",
        "True",
    ),
    "a letter has the last reason only": (undo, "; the run died of: {self.reason(run)}", ""),
    "that a run dies is not recorded": (undoing, "drive(undos.die(run, why))", "None"),
    "a run dies of what its replay raised": (
        undoing,
        "    return undos.dead(run, error)",
        "    return error",
    ),
    "a recorded step gives no undo": (
        run,
        "            if undo is not None:\n                self.undos.give(label, undo, value)\n",
        "",
    ),
    "the value of an undone step is lost": (
        undo,
        "run.record(undo.name, value, took",
        "run.record(undo.name, None, took",
    ),
}
