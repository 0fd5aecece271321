"""The names of the steps and children that a handler's code may take, as its source tells them.

It tells a renamed step from one that the run has yet to come to. Where it can't be told, any name
counts as there.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import re
import sys
import textwrap
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import FunctionType, ModuleType
from typing import Any

from attrs import define, field

ANY = ".*"
NUMBER = r"(-\d+)?"  # behind a name that the run makes
MISSING = object()
Args = Sequence[ast.expr]
Options = Mapping[str | None, ast.expr]
# makes the patterns of the names in a call
Reader = Callable[["_Scope", Args, Options], list[str]]


def gone(function: Callable[..., Any], names: list[str], takers: Mapping[str, Reader]) -> list[str]:
    """Return the *names* of STEPS, or of CHILDREN, that the code of a handler takes no more."""
    patterns = _Code(function, takers).patterns() if names else ()
    return [
        name for name in names if not any(re.fullmatch(one, name, re.DOTALL) for one in patterns)
    ]


def plain(function: Any) -> Any:
    """Return the function itself, below its wrappers."""
    while isinstance(function, partial):
        function = function.func
    function = getattr(function, "__func__", function)
    return inspect.unwrap(function) if callable(function) else function


@define
class _Code:
    handler: Any
    takers: Mapping[str, Reader]
    known: set[int] = field(factory=set[int], init=False)
    left: deque[Any] = field(factory=deque[Any], init=False)

    def patterns(self) -> set[str]:
        self._add(self.handler)
        found = set[str]()
        while self.left and ANY not in found:
            if len(self.known) > 500:  # functions that are looked at for one handler
                return {ANY}
            found |= set(self._of(self.left.popleft()))
        return found

    def _add(self, value: Any) -> None:
        """Look at a function later, or at all functions of a class, if they are the user's."""
        if isinstance(value, type):
            for one in vars(value).values() if _of_user(value) else ():
                method = plain(one)
                # a method that a decorator of the class has made has no source
                if isinstance(method, FunctionType) and not _made(method):
                    self._add(method)
            return
        function = plain(value) if callable(value) else None
        known = id(function) in self.known
        if not known and isinstance(function, FunctionType) and _of_user(function):
            self.known.add(id(function))
            self.left.append(function)

    def _of(self, function: FunctionType) -> Iterator[str]:
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
        except (OSError, SyntaxError, TypeError):
            yield ANY  # its source is not there
            return
        scope = _Scope(function)
        called = {id(one.func): one for one in ast.walk(tree) if isinstance(one, ast.Call)}
        for node in ast.walk(tree):
            if isinstance(node, (ast.Name, ast.Attribute)):
                value = scope.value(node)
                self._add(value)
                taken = self.takers.get(getattr(node, "attr", "")) if value is MISSING else None
                if taken is not None:
                    yield from _read(taken, scope, called.get(id(node)))
            if isinstance(node, ast.Call) and scope.hands_on(node):
                yield ANY


def _of_user(value: Any) -> bool:
    top = (value.__module__ or "").partition(".")[0]
    return top not in sys.stdlib_module_names and top != "headrace"


def _made(function: FunctionType) -> bool:
    return function.__code__.co_filename.startswith("<")


@define
class _Scope:
    function: Any
    visible: dict[str, Any] = field(init=False)

    def __attrs_post_init__(self) -> None:
        code = self.function.__code__
        self.visible = dict(self.function.__globals__)
        for name in code.co_varnames:
            self.visible.pop(name, None)
        for name, cell in zip(code.co_freevars, self.function.__closure__ or (), strict=False):
            with suppress(ValueError):  # it is not set yet
                self.visible[name] = cell.cell_contents

    def value(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Name):
            return self.visible.get(node.id, getattr(builtins, node.id, MISSING))
        if not isinstance(node, ast.Attribute):
            return MISSING
        owner = self.value(node.value)
        if owner is MISSING:
            return MISSING
        # a property of an object is not called
        looked = owner if isinstance(owner, (ModuleType, type)) else type(owner)
        return getattr(looked, node.attr, MISSING)

    def hands_on(self, call: ast.Call) -> bool:
        code = self.function.__code__
        parameters = set(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])
        method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        some = 1 if method in CHILDREN else None  # the others are the child's
        given = [*call.args, *(one.value for one in call.keywords)][:some]
        names = {one.id for one in given if isinstance(one, ast.Name)}
        return bool(names & parameters) and method not in STEPS and self.value(call.func) is MISSING


def _read(taken: Reader, scope: _Scope, call: ast.Call | None) -> list[str]:
    if call is None:
        return [ANY]  # the method goes elsewhere
    return taken(scope, call.args, {one.arg: one.value for one in call.keywords})


def _named(scope: _Scope, args: Args, options: Options) -> list[str]:
    return [_pattern(scope, one) for one in [*args, options.get("name")][:1] if one]


def _sources(_scope: _Scope, _args: Args, options: Options) -> list[str]:
    return [ANY if name is None else re.escape(name) + NUMBER for name in ("first", *options)]


def _child(scope: _Scope, args: Args, options: Options) -> list[str]:
    named = options.get("child", options.get(None))
    return [_pattern(scope, named)] if named else [_callee(scope, one) for one in args[:1]]


def _children(scope: _Scope, args: Args, options: Options) -> list[str]:
    match [*args, options.get("calls")]:
        case [ast.List(some) | ast.Tuple(some), *_]:
            return [_callee(scope, one) for one in some]
        case [ast.ListComp(one), *_]:
            return [_callee(scope, one)]
        case _:
            return [ANY]


def _callee(scope: _Scope, call: ast.expr) -> str:
    first = call.elts[0] if isinstance(call, ast.Tuple) and call.elts else call
    task = scope.value(first)
    if hasattr(task, "new"):
        return re.escape(str(task.name)) + NUMBER
    queue = _pattern(scope, first) if first is not call else ANY
    return ANY if "(" in queue else queue.rpartition("/")[2] + NUMBER


def _pattern(scope: _Scope, node: ast.expr) -> str:
    match node:
        case ast.Constant(str(text)):
            made = re.escape(text)
        case ast.JoinedStr(values):
            made = "".join(_pattern(scope, value) for value in values)
        case ast.BinOp(left, ast.Add(), right):
            made = _pattern(scope, left) + _pattern(scope, right)
        case ast.BinOp(ast.Constant(str(text)), ast.Mod(), _):
            made = ANY.join(map(re.escape, re.split(r"%[^a-zA-Z%]*[a-zA-Z]", text)))
        case ast.Call(ast.Attribute(ast.Constant(str(text)), "format")):
            made = ANY.join(map(re.escape, re.split(r"\{[^}]*\}", text)))
        case ast.IfExp(_, body, orelse):
            made = f"(?:{_pattern(scope, body)}|{_pattern(scope, orelse)})"
        case _:
            value = scope.value(node)
            made = re.escape(value) if isinstance(value, str) else ANY
    return made


STEPS: Mapping[str, Reader] = {
    "step": _named,
    "sleep": _named,
    "wait_for": _named,
    "signal_of": _named,
    "first": _sources,
}
CHILDREN: Mapping[str, Reader] = {"run": _child, "start": _child, "run_all": _children}
