import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from fastapi import FastAPI, HTTPException
from headrace import JobFailed

from mail import emails, worker


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(emails)
        # a small service: its worker lives in the web server's process
        if "WITH_WORKER" in os.environ:
            await stack.enter_async_context(worker)
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/welcome/{address}", status_code=202)
async def welcome(address: str) -> dict[str, object]:
    receipt = await emails.enqueue(address, id=f"welcome-{address}")
    return {"id": receipt.id, "added": receipt.added}


@app.get("/jobs/{job}")
async def state(job: str) -> dict[str, object]:
    found = await emails.find(job)
    return {"state": found.state if found else "gone", "reason": found.reason if found else None}


@app.get("/jobs/{job}/result")
async def result(job: str) -> dict[str, object]:
    try:
        answer = await emails.result(job, timeout=30)
    except TimeoutError:
        raise HTTPException(504, "not yet") from None
    except JobFailed as error:
        raise HTTPException(502, error.reason) from None
    return {"result": answer and answer.decode()}
