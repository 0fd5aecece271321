"""Programs of steps, made at random, and changes of them as people make them between deploys."""

from __future__ import annotations

import importlib.util
import random
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import evolve, frozen

HEAD = """
from dataclasses import dataclass
from headrace.codecs import JSONCodec
from headrace import {worker}

worker = {worker}("redis://localhost:1")
LATER = "{constant}"

@dataclass
class Box:
    n: int

def number(): return 7
def text(): return "seven"
def boxed(): return Box(7)

"""
VALUES = {"int": "number()", "str": "text()", "Box": "boxed()"}
# annotations that read the values of another type
READS = {
    "int": ("int", "float", "int | None", "int | str"),
    "str": ("str", "str | None", "int | str"),
    "Box": ("Box", "Box | None", "dict[str, int]"),
}
STOPS = ("sleep", "wait", "child")  # kinds of parts that suspend a run
KINDS = ("add", "remove", "rename", "reorder", "retype", "fitting type", "reshape", "none")


@frozen
class Part:
    """A step, sleep, wait or child of a program. *style* is how its name is written."""

    name: str
    kind: str = "step"
    type: str = "int"
    style: str = "plain"

    @property
    def base(self) -> str:
        """The type of the values that the function of a step returns."""
        return next(kind for kind, reads in READS.items() if self.type in reads)


@frozen
class Program:
    parts: tuple[Part, ...]
    removed: tuple[str, ...] = ()

    def source(self, colour: str) -> str:
        waits = "await " if colour == "async" else ""
        define = "async def" if colour == "async" else "def"
        later = next((one.name for one in self.parts if one.style == "constant"), "")
        lines = [HEAD.format(worker="AsyncWorker" if waits else "Worker", constant=later)]
        body = list[str]()
        for number, part in enumerate(self.parts):
            name = repr(part.name)
            if part.style == "constant":
                name = "LATER"
            elif part.style == "numbered":
                first, _, last = part.name.rpartition("-")
                name = f'f"{first}-{{{last}}}"'
            call = f"job.step({name}, f{number})"
            if part.kind == "sleep":
                call = f"job.sleep({name}, 86400)"
            elif part.kind == "wait":
                call = f"job.wait_for({name})"
            elif part.kind == "child" and part.style == "plain":
                call = f'job.run(("q/{part.name}", 1))'
            elif part.kind == "child":
                call = f'job.run(("q/child", 1), child={name})'
            else:
                value = VALUES[part.base]
                lines.append(f"def f{number}() -> {part.type!r}: return {value}\n")
            if part.style == "helper":
                lines.append(f"{define} h{number}(job): return {waits}{call}\n")
                call = f"h{number}(job)"
            body.append(f"    v{number} = {waits}{call}\n")
        lines.append('@worker.handler("q", codec=JSONCodec())\n')
        return "".join([*lines, f"{define} handler(job):\n", *body, "    return 1\n"])

    def load(self, folder: Path, name: str, colour: str) -> Any:
        """Import the program as a module with a `worker`."""
        path = folder / f"{name}.py"
        path.write_text(self.source(colour), "utf-8")
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        return module

    def changed(self, kind: str, at: int, dice: random.Random) -> Program:
        """Return the program after a change of the part *at*."""
        parts = list(self.parts)
        part = parts[at]
        if kind == "add":
            parts.insert(at, Part(f"new-{dice.randrange(10**6)}x"))
        elif kind == "remove":
            return Program((*parts[:at], *parts[at + 1 :]), (part.name,))
        elif kind == "rename":
            parts[at] = evolve(part, name=f"other-{part.name}-v2", style="plain")
        elif kind == "reorder":
            other = dice.randrange(len(parts))
            parts[at], parts[other] = parts[other], part
        elif kind == "retype":
            parts[at] = evolve(part, type=dice.choice([t for t in VALUES if t != part.type]))
        elif kind == "fitting type":
            parts[at] = evolve(part, type=dice.choice(READS[part.base]))
        elif kind == "reshape":
            others = [k for k in ("step", *STOPS) if k != part.kind]
            parts[at] = evolve(part, kind=dice.choice(others))
        return Program(tuple(parts))


@frozen
class Expected:
    """What a run with these records meets in a changed program."""

    end: str
    at: str = ""


def made(dice: random.Random) -> Program:
    """Make a program of six to nine parts, of which the third and another one suspend the run."""
    parts = list[Part]()
    for number in range(dice.randrange(6, 10)):
        word = dice.choice(["pay", "ship", "mail", "check", "quote"])
        name = f"{word}{number}-{dice.randrange(5)}"
        style = dice.choice(["plain", "numbered", "helper"])
        parts.append(Part(name, "step", dice.choice(list(VALUES)), style))
    for at in (2, dice.randrange(3, len(parts))):
        parts[at] = evolve(parts[at], kind=dice.choice(STOPS))
    constant = dice.randrange(len(parts))
    parts[constant] = evolve(parts[constant], style="constant")
    return Program(tuple(parts))


def expected(program: Program, before: Program, open_at: str) -> Expected:
    """Tell how a run of *before* that stands in *open_at* must go on in a changed program."""
    known = _until(before, open_at)
    for part in program.parts:
        old = known.get(part.name)
        if old is None:
            names = {one.name for one in program.parts}
            lost = [n for n in known if n not in names and n not in program.removed]
            return Expected("misfit" if lost else "new", part.name)
        if old.kind != part.kind:
            return Expected("misfit")
        if part.kind == "step" and part.type not in READS[old.type]:
            return Expected("misfit")
        if part.name == open_at:
            return Expected("suspended", part.name)
    return Expected("completed")


def _until(program: Program, name: str) -> Mapping[str, Part]:
    """Return the parts that a run which stands in *name* has recorded."""
    found = dict[str, Part]()
    for part in program.parts:
        found[part.name] = part
        if part.name == name:
            break
    return found
