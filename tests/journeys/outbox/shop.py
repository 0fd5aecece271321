from headrace import Job, Queue, Retry, Worker
from headrace.sql import Outbox, inbox
from sqlalchemy import create_engine, update
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

engine = create_engine("sqlite:///shop.db", connect_args={"timeout": 30})
orders = Queue("orders", max_attempts=50)  # its server is named by the environment: HEADRACE_URL
outbox = Outbox(orders)
worker = Worker(heartbeat=0.5, timeout=2)
worker.relay(outbox, engine)


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    name: Mapped[str] = mapped_column(primary_key=True)


class Account(Base):
    __tablename__ = "account"
    id: Mapped[int] = mapped_column(primary_key=True)
    balance: Mapped[int]


@worker.handler(orders, concurrency=2, retry=Retry(attempts=50, wait=0.1))
def charge(job: Job) -> None:
    with Session(engine) as session, session.begin():
        if inbox(session, job):  # not yet, by an earlier delivery
            session.execute(update(Account).values(balance=Account.balance - 1))


if __name__ == "__main__":
    worker.run()
