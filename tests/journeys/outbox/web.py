from fastapi import FastAPI
from sqlalchemy.orm import Session

from shop import Order, engine, outbox

app = FastAPI()


@app.post("/orders/{name}", status_code=201)
def order(name: str) -> dict[str, str]:
    with Session(engine) as session, session.begin():
        session.add(Order(name=name))
        session.flush()
        outbox.enqueue(session, name.encode(), id=name)
    return {"order": name}
