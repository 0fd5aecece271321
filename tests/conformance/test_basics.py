"""What everybody does first."""

from headrace import Counts


def test_enqueue_lease_complete(queue):
    receipt = queue.enqueue(b"a")
    lease = queue.lease()
    assert (lease.job.id, lease.job.payload, lease.job.attempt) == (receipt.id, b"a", 1)
    assert lease.complete() is True
    assert lease.complete() is False
    assert queue.complete(lease) is False
    assert list(queue.waiting()) == []
    assert queue.counts() == Counts(enqueued=1, completed=1)
