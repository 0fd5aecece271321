"""An isolated handler becomes a plain function that waits for a child."""

from __future__ import annotations

import inspect
import logging
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from attrs import evolve

from headrace._isolation.carried import innermost
from headrace._isolation.children import Children
from headrace._isolation.handler import Isolated
from headrace._isolation.program import Place, Program, served
from headrace._model.isolation import Isolation
from headrace._model.settings import HandlerSettings
from headrace.errors import ConfigurationError

Stops = list[Callable[[], Any]]


def place_of(function: Any) -> Place:
    """Return where a child finds a handler. Raises `ConfigurationError` if it can't be found."""
    again = getattr(getattr(function, "__self__", None), "_again", None)
    if again is not None:
        return Place(*again())
    bare = inspect.unwrap(function)
    module = getattr(bare, "__module__", None)
    path = getattr(bare, "__qualname__", None)
    if module is None or path is None or isinstance(function, partial) or inspect.ismethod(bare):
        raise ConfigurationError(
            f"isolate: a child process finds a handler by its name, and {function!r:.100} has "
            "none: give a function that stands at the top of its module"
        )
    place = Place(module, path)
    try:
        found = place.found()
    except ConfigurationError as error:
        raise ConfigurationError(f"isolate: {error}") from None
    there, _ = served(found)
    if inspect.unwrap(there) is not bare:
        raise ConfigurationError(
            f"isolate: {module}.{path} is not this handler, so a child process would run "
            "another function: give the handler a name of its own"
        )
    return place


def isolated(handler: HandlerSettings, stops: Stops) -> HandlerSettings:
    """Start the children of a queue's isolated handlers, and return settings that use them. The
    function that ends the children is added to *stops*. At least one handler is isolated.
    """
    each = dict(handler.kinds) or {None: handler}
    some = {kind: one for kind, one in each.items() if one.isolation is not None}
    isolation = _agreed(handler.queue, [one.isolation for one in each.values() if one.isolation])
    program = Program(
        {kind: place_of(one.function) for kind, one in some.items()},
        innermost(handler.codec),
        handler.batch,
        isolation.memory_mb,
        isolation.recycle_mb is not None,
        logging.getLogger().getEffectiveLevel(),
        _of_django(),
    )
    children = Children(handler.queue, program, isolation, handler.concurrency)
    stops.append(children.end)
    children.begin()

    def within(kind: str | None, one: HandlerSettings) -> HandlerSettings:
        function = Isolated(
            children,
            one.function,
            kind,
            handler.codec,
            one.encode is not None,
            handler.batch,
            one.deadline,
        )
        return evolve(one, function=function, encode=None)

    made = {**each, **{kind: within(kind, one) for kind, one in some.items()}}
    if not handler.kinds:
        return evolve(made[None], children=children.told)
    route: Any = handler.function
    function = partial(route.func, made)
    return evolve(handler, kinds=made, function=function, children=children.told)


def _of_django() -> bool:
    apps: Any = sys.modules.get("django.apps")
    return apps is not None and apps.apps.ready and "DJANGO_SETTINGS_MODULE" in os.environ


def _agreed(queue: str, some: list[Isolation]) -> Isolation:
    first, *others = some
    for other in others:
        if other != first:
            raise ConfigurationError(
                f"queue {queue!r}: {first!r} and {other!r}: the handlers of a queue share their "
                "children: give the same isolate= to each"
            )
    return first
