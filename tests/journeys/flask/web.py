from flask import Flask
from headrace import JobFailed

from jobs import emails

app = Flask(__name__)


@app.post("/users/<user>/welcome")
def welcome(user: str) -> tuple[dict[str, object], int]:
    receipt = emails.enqueue(user, id=f"welcome-{user}", timeout=2)
    return {"id": receipt.id, "added": receipt.added}, 202


@app.get("/jobs/<job>/result")
def result(job: str) -> tuple[dict[str, object], int]:
    try:
        answer = emails.result(job, timeout=30)
    except TimeoutError:
        return {"error": "not yet"}, 504
    except JobFailed as error:  # dead, cancelled or deleted
        return {"error": error.reason}, 502
    return {"result": answer and answer.decode()}, 200
