from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from headrace import JobFailed
from litestar import Litestar, get, post
from litestar.exceptions import HTTPException

from mail import emails, worker


@asynccontextmanager
async def lifespan(_app: Litestar) -> AsyncIterator[None]:
    async with emails, worker:  # without the worker, if it is a process of its own
        yield


@post("/users/{user:str}/welcome", status_code=202)
async def welcome(user: str) -> dict[str, object]:
    receipt = await emails.enqueue(user, id=f"welcome-{user}", timeout=2)
    return {"id": receipt.id, "added": receipt.added}


@get("/jobs/{job:str}/result")
async def result(job: str) -> dict[str, object]:
    try:
        answer = await emails.result(job, timeout=30)
    except TimeoutError:
        raise HTTPException("not yet", status_code=504) from None
    except JobFailed as error:  # dead, cancelled or deleted
        raise HTTPException(error.reason or error.state, status_code=502) from None
    return {"result": answer and answer.decode()}


app = Litestar([welcome, result], lifespan=[lifespan])
