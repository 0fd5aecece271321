"""The parameters of a function. Arguments and results travel as JSON, and arguments have their
names.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from headrace._codecs.annotated import (
    LOOSE,
    TypeCodec,
    TypeMismatch,
    dumped,
    either,
    loaded,
    must_be,
    shape,
)
from headrace._forks import cached_property
from headrace.errors import ConfigurationError, Verdict

Parameter = inspect.Parameter
BY_PLACE = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
NAMED = (*BY_PLACE, Parameter.KEYWORD_ONLY)


class Signature:
    """The parameters of the function *name*. Missing arguments are not sent, as the worker uses its
    own defaults."""

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self._function = function
        self._name = name
        self._signature = inspect.signature(function)

    @cached_property
    def _hints(self) -> Mapping[str, Any]:
        return typing.get_type_hints(_annotated(self._function), localns=_enclosing(self._function))

    @cached_property
    def shapes(self) -> Mapping[str, TypeCodec]:
        """The shape of each parameter. Raises `ConfigurationError` for a type that JSON can't
        carry, and `NameError` for a type that does not exist (yet).
        """
        made: dict[str, TypeCodec] = {}
        for parameter in self._signature.parameters:
            try:
                made[parameter] = shape(self._hints.get(parameter, Any))
            except ConfigurationError as error:
                raise ConfigurationError(f"task {self._name!r}: {parameter}: {error}") from None
        return made

    @cached_property
    def answer(self) -> TypeCodec:
        """The shape of the result. Raises the same errors as `shapes`."""
        inner = _annotated(self._function)
        alone = types.SimpleNamespace(
            __annotations__={"return": inner.__annotations__.get("return", Any)}
        )
        names: dict[str, Any] = getattr(inner, "__globals__", {})
        hint = typing.get_type_hints(alone, names, _enclosing(self._function))["return"]
        if typing.get_origin(hint) in {typing.Union, types.UnionType}:
            members = [one for one in typing.get_args(hint) if not _is_verdict(one)]
            hint = either(members) if members else Any
        if hint in {Any, object, typing.NoReturn, typing.Never} or _is_verdict(hint):
            return LOOSE
        return shape(hint)

    def check(self) -> None:
        """Raise `ConfigurationError` if an annotation is missing, or names a type that JSON can't
        carry."""
        try:
            _ = self._hints  # of the result, too
            _ = self.shapes
        except (NameError, AttributeError) as error:
            raise ConfigurationError(
                f"task {self._name!r}: {unreadable(self._function, error)}"
            ) from None

    @cached_property
    def defaults(self) -> Mapping[str, Any]:
        """The defaults of the parameters, as JSON has them. A default of another type is left
        out."""
        found: dict[str, Any] = {}
        for name, parameter in self._signature.parameters.items():
            if parameter.default is not Parameter.empty:
                with suppress(TypeMismatch):
                    found[name] = self.shapes[name].pack(parameter.default)
        return found

    def pack(self, args: Sequence[Any], options: Mapping[str, Any]) -> bytes:
        return self.written(self.packed(args, options))

    def packed(self, args: Sequence[Any], options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call by their names, as JSON has them. Raises `TypeError` for
        arguments that the function does not take."""
        try:
            bound = self._signature.bind(*args, **options).arguments
        except TypeError as error:
            raise TypeError(f"task {self._name!r}: {error}") from None
        self.check()
        packed: dict[str, Any] = {}
        for name, value in bound.items():
            kind = self._signature.parameters[name].kind
            convert = self.shapes[name].pack
            try:
                if kind is Parameter.VAR_POSITIONAL:
                    packed[name] = [convert(one) for one in value]
                elif kind is Parameter.VAR_KEYWORD:
                    packed[name] = {key: convert(one) for key, one in value.items()}
                else:
                    packed[name] = convert(value)
            except TypeMismatch as misfit:
                raise TypeError(f"task {self._name!r}: {misfit.within(name)}") from None
        return packed

    def written(self, packed: Mapping[str, Any]) -> bytes:
        try:
            return dumped(packed)
        except TypeMismatch as misfit:
            raise TypeError(f"task {self._name!r}: {misfit}") from None

    def unpack(self, data: bytes) -> tuple[list[Any], dict[str, Any]]:
        """Read arguments. Raises `TypeMismatch` if they do not fit the function as it is in this
        program."""
        found = must_be(dict, loaded(data), "a JSON object of arguments by their names")
        parameters = self._signature.parameters
        if more := found.keys() - parameters.keys():
            raise TypeMismatch(f"an argument {min(more)!r}, which it does not take here")
        args: list[Any] = []
        options: dict[str, Any] = {}
        for name, parameter in parameters.items():
            if name in found:
                try:
                    _take(parameter, self.shapes[name].unpack, found[name], args, options)
                except TypeMismatch as misfit:
                    raise misfit.within(name) from None
            elif parameter.kind in NAMED and parameter.default is Parameter.empty:
                raise TypeMismatch(f"lacks the argument {name!r}")
            elif parameter.kind in BY_PLACE:
                args.append(parameter.default)
        return args, options

    def pack_result(self, value: Any) -> bytes:
        try:
            return dumped(self.answer.pack(value))
        except TypeMismatch as misfit:
            raise TypeError(str(misfit.within("result"))) from None

    def unpack_result(self, data: bytes) -> Any:
        """Read a result. Raises `TypeMismatch` for one that is not of the annotated type."""
        return self.answer.unpack(loaded(data))


def unreadable(function: Callable[..., Any], error: NameError | AttributeError) -> str:
    """Describe an annotation of *function* that can't be read, and say where its name has to be."""
    module = getattr(_annotated(function), "__module__", "its module")
    return (
        f"{error}: an annotation has this name, and is read where the function runs: define {error.name!r}, or import "
        f"it, at the top of {module}, and not for type checkers only"
    )


def _annotated(function: Any) -> Any:
    function = inspect.unwrap(function)
    return function if hasattr(function, "__annotations__") else type(function).__call__


def _enclosing(function: Any) -> dict[str, Any]:
    """Return the names that *function* takes from functions around it, where a class may be
    defined."""
    inner = _annotated(function)
    names = getattr(getattr(inner, "__code__", None), "co_freevars", ())
    found: dict[str, Any] = {}
    for name, cell in zip(names, getattr(inner, "__closure__", None) or (), strict=False):
        with suppress(ValueError):  # not assigned yet
            found[name] = cell.cell_contents
    return found


def _take(
    parameter: Parameter,
    convert: Callable[[Any], Any],
    value: Any,
    args: list[Any],
    options: dict[str, Any],
) -> None:
    if parameter.kind is Parameter.VAR_POSITIONAL:
        args += map(convert, must_be(list, value, "an array"))
    elif parameter.kind is Parameter.VAR_KEYWORD:
        options |= {key: convert(one) for key, one in must_be(dict, value, "an object").items()}
    elif parameter.kind is Parameter.KEYWORD_ONLY:
        options[parameter.name] = convert(value)
    else:
        args.append(convert(value))


def _is_verdict(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Verdict)
