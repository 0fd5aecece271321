import sys
from collections.abc import Iterator
from pathlib import Path

from headrace import NewJob

from load import rows

DONE = Path("lines-done")


def jobs(skip: int) -> Iterator[NewJob]:
    with Path("amounts.jsonl").open("rb") as lines:
        for number, line in enumerate(lines):
            if number >= skip:
                # may be enqueued again: it is a job once
                yield NewJob(line.rstrip(), id=f"amounts-{number}")


skip = int(DONE.read_text()) if DONE.exists() else 0


def progress(count: int) -> None:
    DONE.write_text(str(skip + count))
    print(skip + count, "lines are in", file=sys.stderr)


if __name__ == "__main__":
    with rows:
        rows.enqueue_stream(jobs(skip), progress)
