from headrace import Job, NewJob, Queue

from app import greet, mails, others


async def mistakes(job: Job) -> None:
    mails.enqueue("ada@example.org")  # wrong: it takes a Mail
    mails.enqueue_many([NewJob(b"ada@example.org")])  # wrong
    mails.enqueue(id="ada")  # wrong: no payload
    others.enqueue({"to": "ada"})  # wrong: bytes, or a str
    await others.enqueue(b"x", dealy=5)  # wrong: misspelt
    await others.enqueue(b"x", headers={"attempt": 5})  # wrong: text to text
    lease = mails.lease()
    lease.complete()  # wrong: there may be none
    print(job.payload.to)  # wrong: a bare Job is of bytes
    number: int = mails.counts()  # wrong
    Queue("emails", max_attempts="5")  # wrong
    greet.enqueue(5)  # wrong: a name
    greet.enqueue("ada", times="2")  # wrong
    greet.options(dealy=5).enqueue("ada")  # wrong: misspelt
    text: str = greet.enqueue("ada").result()  # wrong: a list
    print(number, text)
