"""The maker that `queue.ops` is. It has the operations of all features as methods, for pipelines of
a program's own."""

from __future__ import annotations

from attrs import frozen

from headrace._protocol import admin_ops, view_ops
from headrace._protocol.features import results as result_ops, schedules as schedule_ops
from headrace._protocol.queue_ops import Ops


@frozen
class EveryOp(Ops):
    """The maker of the operations of one queue. The operations of features are methods here. The
    core calls the functions.
    """

    cancel = admin_ops.cancel
    cancel_payload = admin_ops.cancel_payload
    reschedule = admin_ops.reschedule
    purge = admin_ops.purge
    purge_dead = admin_ops.purge_dead
    delete = admin_ops.delete
    redrive = admin_ops.redrive
    pause = admin_ops.pause
    paused = admin_ops.paused
    expire = admin_ops.expire
    fail_worker = admin_ops.fail_worker
    move = admin_ops.move
    repair = admin_ops.repair
    counts = view_ops.counts
    levels = view_ops.levels
    measure = view_ops.measure
    listing = view_ops.listing
    find = view_ops.find
    seek = view_ops.seek
    position = view_ops.position
    workers = view_ops.workers
    result_bytes = result_ops.result_bytes
    result = result_ops.result
    results = result_ops.results
    ended = result_ops.ended
    schedule = schedule_ops.schedule
    unschedule = schedule_ops.unschedule
    schedules = schedule_ops.schedules
    schedule_of = schedule_ops.schedule_of
    pause_schedule = schedule_ops.pause_schedule
    run_schedule = schedule_ops.run_schedule
