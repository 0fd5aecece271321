"""The cost of tracing in a drain. Ratios compare a process without its calls, on the same jobs, by
interleaved rounds.

python bench/tracing.py --server valkey-9.1 --rounds 7 --jobs 100000

Each measurement is a process of its own, which drains jobs that are there, by handlers that do
nothing:

- `removed`: the hooks are taken out before the first job: those of the worker's round trips and
  runs, those of a queue.
- `unset`: as it is, with no SDK set up.
- `sdk 1 %`: with an SDK that samples one trace in a hundred (`ParentBased`), and exports to
  nowhere.
- `sdk 100 %`, `metrics`: for comparison; with `metrics` no spans, but all measurements.

A mode with `+ context` drains jobs that carry a context, one that was not sampled, as a traced
producer sends them; the others drain jobs that are nothing but their payload. `cpu` is the ratio of
the processor time of both ends per job, each in its best round: other programs on the machine only
ever make it worse.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.throughput import Bench
from tests.support.servers import Server, binaries

CONTEXT = " + context"
MODES = [
    "removed", "unset", "sdk 1 %", "sdk 100 %", "metrics", "removed + context", "unset + context", "sdk 1 % + context",
]  # fmt: skip
WAYS = ["async batch", "async per job", "threads"]
GOALS = {"unset": 0.97, "sdk 1 %": 0.85}  # of `removed`, on the same jobs


class Running:
    """A server that is running already."""

    def __init__(self, path: str) -> None:
        self.path, self.url = path, f"unix://{path}?db=0"


def remove() -> None:
    """Remove the hooks."""
    import headrace._api.flow
    import headrace._api.queue
    import headrace._engine.tasks
    import headrace._engine.threads
    import headrace._net.sync.executor

    class Nothing:
        on = False

        def __init__(self, *_: object) -> None: ...

    async def send(self: Any, ops: Sequence[Any], executor: Any) -> list[Any]:
        return await executor.run_all(ops)

    headrace._engine.threads.WorkerTelemetry = headrace._engine.tasks.WorkerTelemetry = Nothing  # type: ignore[assignment,misc]
    headrace._engine.threads.Engine._send = lambda self, ops, executor: executor.run_all(ops)  # type: ignore[method-assign]
    headrace._engine.tasks.Engine._send = send  # type: ignore[method-assign]

    async def run(self: Any, slots: Any, unit: Any, argument: Any) -> None:
        error: BaseException | None = None
        result: Any = None
        try:
            result = await slots.call(argument)
        except BaseException as raised:
            error = raised
        slots.tasks.pop(id(unit), None)
        self._ended(slots, unit, error, result)

    headrace._engine.tasks.Engine._run = run  # type: ignore[method-assign]
    headrace._api.queue.wanted = headrace._api.flow.wanted = lambda: False  # type: ignore[attr-defined]


def set_up(mode: str) -> None:
    """Set this process up for that mode."""
    if mode == "removed":
        remove()
    elif mode.startswith("sdk"):
        from opentelemetry import trace
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import (
            BatchSpanProcessor,
            SpanExporter,
            SpanExportResult,
        )
        from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

        class Nowhere(SpanExporter):
            def export(self, spans: Any) -> Any:
                return SpanExportResult.SUCCESS

        provider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(float(mode.split()[1]) / 100))
        )
        provider.add_span_processor(BatchSpanProcessor(Nowhere()))
        trace.set_tracer_provider(provider)
    elif mode == "metrics":
        from opentelemetry import metrics
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import InMemoryMetricReader

        metrics.set_meter_provider(MeterProvider([InMemoryMetricReader()]))


def child(path: str, mode: str, way: str, jobs: int) -> None:
    """Make one measurement, which fills, drains and prints."""
    from headrace import NewJob

    set_up(mode.removesuffix(CONTEXT))
    bench = Bench(Running(path), jobs, 100)  # type: ignore[arg-type]
    header = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"}
    if CONTEXT in mode:
        bench.payloads = [NewJob(payload, headers=header) for payload in bench.payloads]  # type: ignore[misc]
    elif mode != "removed":
        import headrace._api.queue

        headrace._api.queue.wanted = lambda: False  # type: ignore[attr-defined]  # filling is not measured, and adds none
    print(json.dumps(bench.measure(way)))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--server", default="valkey-9.1", help="one of " + ", ".join(b.name for b in binaries())
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--jobs", type=int, default=60_000)
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        path, mode, way, jobs = options.child
        child(path, mode, way, int(jobs))
        return
    ways, modes = options.ways.split(","), options.modes.split(",")
    runs: dict[tuple[str, str], list[dict[str, float]]] = {
        (way, mode): [] for way in ways for mode in modes
    }
    with Server(next(b for b in binaries() if b.name == options.server)) as server:
        for number in range(options.rounds):
            for way in ways:
                for mode in modes[number % len(modes) :] + modes[: number % len(modes)]:
                    command = [
                        sys.executable,
                        __file__,
                        "--child",
                        server.path,
                        mode,
                        way,
                        str(options.jobs),
                    ]
                    done = subprocess.run(command, check=True, capture_output=True, text=True)
                    runs[way, mode].append(json.loads(done.stdout.splitlines()[-1]))
    print(f"{options.server}: {options.jobs} jobs of 100 bytes, medians of {options.rounds} rounds")
    print(
        f"{'way':15}{'mode':19}{'jobs/s':>9}{'of removed':>17}{'cpu':>7}{'goal':>6}{'client us':>10}{'server us':>10}"
    )
    for (way, mode), found in runs.items():
        base = runs[way, "removed" + CONTEXT if CONTEXT in mode else "removed"]
        speeds = [
            a["jobs_per_second"] / b["jobs_per_second"] for a, b in zip(found, base, strict=True)
        ]
        cost = min(map(_cpu, base)) / min(map(_cpu, found))
        row = {key: statistics.median(run[key] for run in found) for key in found[0]}
        best = {key: min(run[key] for run in found) for key in found[0]}
        goal = GOALS.get(mode.removesuffix(CONTEXT))
        print(
            f"{way:15}{mode:19}{row['jobs_per_second']:9,.0f}{_spread(speeds):>17}{cost:>7.0%}"
            f"{f'{goal:.0%}' if goal else '':>6}{best['client_us']:10.2f}{best['server_us']:10.2f}"
        )


def _cpu(run: dict[str, float]) -> float:
    return run["client_us"] + run["server_us"]


def _spread(ratios: Sequence[float]) -> str:
    return f"{statistics.median(ratios):.0%} ({min(ratios):.0%}-{max(ratios):.0%})"


if __name__ == "__main__":
    main()
