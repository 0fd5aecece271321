from headrace import DeadLetter, Job, Queue, Worker

emails = Queue("emails")  # its server is named by the environment: HEADRACE_URL
worker = Worker()


@worker.handler(emails, concurrency=10)
def send(job: Job) -> bytes:
    if b"@" not in job.payload:
        raise DeadLetter("not an address")
    return b"250 OK"
