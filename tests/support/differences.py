"""Differences of three masters from one server: the bodies of tests/conformance, by the reason.

A body that is listed here does not run there by default. With `--full`, or `--servers cluster-3` or `cluster-3x6`, it
does, and has to fail, but where an order is a matter of chance: one that passes is to be taken off the list, and one
that is refused has to be so in the words that are given. `conformance/test_differences.py` shows that what is refused
is refused so, and leaves nothing behind.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from attrs import frozen

from headrace import ConfigurationError
from tests.support.servers import Binary


@frozen
class Difference:
    """A reason, and the bodies to which it applies."""

    name: str
    why: str
    bodies: str
    """The name of a file, then its bodies, each as `test_body`, or `test_body[part of a case's id]`; and so on."""
    refused: str = ""
    """The words of the `ConfigurationError`, if it is one."""
    always: bool = True
    """Whether it is sure to fail: where calls begin with any shard, some pass now and then."""

    @property
    def cases(self) -> Iterator[tuple[str, str, str]]:
        """Yield the file, the body and the part of a case's id."""
        file = ""
        for word, ending, part in re.findall(r"(test_\w+)(\.py)?(?:\[([^\]]*)\])?", self.bodies):
            if ending:
                file = word
            else:
                yield file, word, part

    @property
    def raises(self) -> Any:
        """The error with which a case has to fail; `None` for any."""
        return pytest.RaisesExc(ConfigurationError, match=self.refused) if self.refused else None


def difference(binary: Binary, body: Any, case: str) -> Difference | None:
    """Return why a case of a body does not hold on a server; `None` if it does."""
    if binary.masters < 2:
        return None
    for part, found in listed(sharded=binary.shards > 1).get((body.path.stem, body.originalname), ()):
        if not part or re.search(rf"(^|-){re.escape(part)}(-|$)", case):
            return found
    return None


@cache
def listed(*, sharded: bool) -> dict[tuple[str, str], list[tuple[str, Difference]]]:
    """List what differs, by file and body: the part of a case's id for which it does, and the reason."""
    found: dict[tuple[str, str], list[tuple[str, Difference]]] = {}
    for one in [*ANYWAY, *(WITH_SHARDS if sharded else [])]:
        for file, body, part in one.cases:
            found.setdefault((file, body), []).append((part, one))
    return found


# On three masters, whatever the shards.
ANYWAY = [
    Difference(
        "one server",
        "the test is about the connection to one server: its socket, databases, a proxy, a client of one node",
        """
        test_close.py test_a_server_that_stands_still_is_not_waited_for test_one_that_did_nothing_says_nothing
        test_connections.py test_client_is_left_alone test_client_with_a_pool test_clients test_databases
            test_environment test_tls test_unix_socket
        test_events.py test_who_may_not_listen_is_told
        test_fleet.py test_workers
        test_inspector.py test_a_user_that_may_only_read_sees_everything
        test_pipeline.py test_a_client_that_decodes test_a_transaction_twice test_every_kind_of_operation
            test_lease_in_a_transaction test_nothing_happens_without_exec
        test_pool.py test_without_hiredis
        test_results.py test_who_may_not_listen_looks
        test_shards.py test_discovery_names_it_once
        test_stream_traps.py test_t20_ids_are_not_taken_for_entries
        """,
    ),
]

# Besides, where queues are sharded: what is refused, what is promised of each shard only, and what tests ask shards.
WITH_SHARDS = [
    Difference(
        "max_waiting",
        "each shard has its share, so there is room in one where another is full: test_shards_full.py has what holds",
        """
        test_admission.py test_a_part_has_room_or_none_of_it_goes_in test_a_queue_that_is_full
            test_a_stream_is_held_back test_many_producers_wait_together
        """,
    ),
    Difference(
        "rate",
        "a limit is kept in one shard",
        """
        test_admission.py test_one_that_a_rate_holds_back
        test_declared.py test_a_producer_that_differs_hears_it_once
        test_inspector.py test_queue
        test_ordered.py test_with_a_rate_of_the_whole_queue
        test_priorities.py test_paused_and_limited_queues
        test_rates.py test_a_burst_of_its_own test_a_job_put_off_for_an_instant_stays_before_those_behind_it
            test_a_lost_due_time_loses_no_job test_a_new_job_waits_behind_all_that_are_due
            test_a_new_job_waits_behind_nobody_who_was_cancelled
            test_a_newer_job_does_not_overtake_those_that_wait
            test_a_reader_waits_for_the_token_and_does_not_spin test_each_value_has_a_limit_of_its_own
            test_full_buckets_are_forgotten test_jobs_without_the_header_have_no_limit
            test_more_than_a_page_waits test_never_faster_than_the_rate test_no_more_than_the_burst_at_once
            test_released_and_retried_jobs_spend_a_token_again test_takers_that_come_late_change_no_order
            test_the_clock_goes_back test_the_clock_goes_back_for_a_key
            test_the_tightest_of_several_limits_decides
            test_they_come_in_their_order_one_step_apart_with_no_attempt_spent
            test_what_a_limit_holds_back_is_delayed_for_every_verb
            test_what_is_rescheduled_comes_when_it_was_told_to_and_under_the_limit
            test_what_the_limit_cut_short_tells_when_there_is_more
            test_what_waits_can_be_cancelled_purged_and_deleted test_what_waits_has_no_lease_to_end
            test_what_waits_too_long_does_not_come_all_at_once
            test_without_the_limit_what_waits_is_handed_out_when_it_is_due
        """,
        refused=r"rate: a script reaches one of 6 shards.* give Rate\(.*per_shard=True",
    ),
    Difference(
        "enqueue_many",
        "conditions are checked in one script with the jobs, and these go to several",
        """
        test_admission.py test_a_worker_s_completion test_many_large_jobs_are_replaced test_taken_for_a_while
            test_throttled
        """,
        refused=r"conditions .* of jobs of a sharded queue: for enqueue, one job at a time",
    ),
    Difference(
        "ops",
        "an operation is one script, and that reaches one shard",
        """
        test_buried.py test_a_job_that_has_worn_out_its_workers
        test_suspects.py test_a_suspect_is_leased_alone test_a_worker_makes_room test_alone_in_its_process
            test_an_end_of_its_own_acquits test_deaths_beside_are_free test_given_back_it_stays_one test_never_alone
            test_leases_by_hand_that_expire_together test_only_deaths_while_alone_count
        test_bulk.py test_dead_letters_that_match_go_back test_what_dies_again_is_not_redriven_again
        test_dead.py test_a_peer_that_has_just_started_knows_the_dead test_another_run_of_the_server
            test_nobody_knows_after_a_gap test_nobody_knows_where_nobody_has_looked test_the_clock_goes_back
            test_the_clock_goes_back_before_many test_the_clock_goes_forward
            test_told_when_the_next_deadline_passes test_who_beat_since_the_clock_went_back_lives
            test_who_was_gone_at_the_last_look_is_removed test_who_was_late_before_a_short_gap_is_dead
        test_delays.py test_promotion_is_in_the_order_of_due_times
        test_enqueue.py test_id_is_free_again[the last attempt]
        test_events.py test_a_listener_that_was_cut_off test_a_worker_that_leaves_gives_back test_nobody_listens
        test_inspect.py test_a_job_that_woke_a_reader_who_is_gone test_find_among_many_dead
            test_first_attempt_of_a_job_that_woke_a_reader test_pages test_to_wake_a_reader_shows_no_attempt
        test_operate.py test_what_comes_back_meanwhile_wakes_nobody
        test_ordered.py test_a_call_looks_at_a_bounded_number_of_jobs test_a_retry_that_spends_nothing
            test_a_turn_that_a_foreign_command_took_is_passed_on_by_the_upkeep
        test_pipeline.py test_operations_are_values test_reasons.py test_tracebacks_count_as_bytes
        test_priorities.py test_a_retry_without_an_attempt_keeps_that
            test_one_that_is_parked_is_not_starved_either test_the_lowest_is_not_starved
            test_who_waited_long_enough_goes_a_level_up
        test_reclaim.py test_a_blocked_reader_is_woken test_a_lease_call_asked_again test_a_lost_reply
            test_a_registration_that_was_removed test_by_hand test_nobody_is_declared_dead_by_a_newcomer
            test_parked_before_new test_poison test_the_dead_and_only_the_dead test_the_dead_hold_many
            test_the_dead_of_long_ago test_wake_tokens_do_not_pile_up test_what_rang_may_be_removed
        test_repair.py test_our_own_operations_break_nothing
        test_schedules.py test_missed test_missed_for_very_long test_one_job_a_tick_however_many_look
            test_replaced_while_somebody_decides test_schedules_and_the_whole_queue
        test_semantics.py test_a_batch_of_all_sorts test_a_blocking_read_is_bounded
            test_a_full_server_is_drained test_a_listing_misses_nothing_that_stays
        test_settle.py test_attempts test_release_of_one_lease_given_twice test_tokens_grow
        test_stream_traps.py test_t14_a_release_wakes test_t17_attempts_are_deliveries_less_releases
            test_t17_only_handing_out_counts test_t1_a_deleted_job_that_rang_is_not_handed_out
            test_t4_what_expired_is_found_behind_what_did_not test_t7_a_consumer_is_removed_empty
        test_sweep.py test_one_cursor_for_all
        """,
        refused=r"has 6 shards, and \w+ reaches one: it is not for whole sharded queues; Queue",
    ),
    Difference(
        "position",
        "there is no order between shards",
        """
        test_foreign.py test_a_dead_letter test_a_delayed_body test_an_entry_in_every_state
        test_ordered.py test_jobs_that_wait_for_their_turn_are_waiting_jobs
        test_position.py test_the_position_is_that_of_the_next_leases test_what_does_not_wait_has_no_position
        test_priorities.py test_who_knows_of_fewer_levels_is_told[position]
        """,
        refused=r"no order between shards; give key=",
    ),
    Difference(
        "order",
        "jobs without a key are first in, first out in each shard, and so are levels and dead letters",
        """
        test_basics.py test_first_in_first_out
        test_codec.py test_quarantine test_quarantine_of_what_came_back test_typed_json
        test_delays.py test_due test_rescheduled_to_now
        test_enqueue.py test_enqueue_many test_enqueue_very_many
        test_inspect.py test_long_listings test_redrive test_redrive_of_a_taken_id
        test_inspector.py test_dead_letters_by_reason test_ends_that_the_history_keeps test_pages_of_jobs
        test_leases.py test_at_most_once
        test_operate.py test_all_leases_expire test_move_everything_that_waits test_move_some test_some_leases_expire
        test_ordered.py test_one_of_a_key_at_a_time_in_order test_what_comes_back_keeps_its_place
        test_priorities.py test_a_delayed_job_comes_to_its_level test_a_job_knows_its_level
            test_a_job_that_comes_later_is_first_if_its_level_is test_a_move_keeps_the_level_if_there_is_one
            test_a_plain_producer_needs_to_know_nothing test_a_redriven_job_goes_to_its_level
            test_a_retry_goes_to_the_back_of_its_level test_expired_ones_are_first_in_their_level
            test_followers_have_levels test_many_are_listed_page_by_page test_more_levels_than_there_are
            test_released_and_reclaimed_ones_are_first_in_their_level test_the_first_level_comes_first
        test_reclaim.py test_a_lease_call_reclaims_and_promotes
        test_semantics.py test_more_than_one_script_takes
        test_settle.py test_complete_many test_leases_that_run_out_are_attempts
        test_stream_traps.py test_t15_the_front_is_no_new_entry test_t1_a_deleted_job_is_not_handed_out
        """,
        always=False,
    ),
    Difference(
        "levels",
        "a shard knows of the levels of jobs that it had, and refuses only then",
        """
        test_priorities.py test_who_knows_of_fewer_levels_is_told[delete]
            test_who_knows_of_fewer_levels_is_told[enqueue] test_who_knows_of_fewer_levels_is_told[lease]
            test_who_knows_of_fewer_levels_is_told[purge]
        """,
        always=False,
    ),
    Difference(
        "elsewhere",
        "another thread sends an operation of the whole queue, which is refused there, and its job never ends",
        """
        test_results.py test_a_cut_while_waiting test_an_id_that_is_used_again_is_waited_for
        """,
    ),
    Difference(
        "parts",
        "a shard has its own registrations, call records, connections, limits, instant, and pages",
        """
        test_admission.py test_woken_when_there_is_room
        test_basics.py test_a_group_shares_a_slot
        test_bulk.py test_jobs_in_each_state test_letters_of_one_id_are_told_apart
        test_close.py test_queues_of_one_name_share_lanes
        test_connections.py test_fork
        test_enqueue.py test_what_one_takes
        test_events.py test_what_is_told[delete]
        test_inspect.py test_what_comes_after_a_verb_has_begun_is_left_alone test_workers
        test_inspector.py test_a_sharded_queue_is_one test_overview test_workers_and_what_each_runs
        test_operate.py test_a_worker_is_failed
        test_ordered.py test_what_is_refused
        test_reclaim.py test_at_most_once_a_second
        test_schedules.py test_too_many
        test_semantics.py test_readers_have_names_of_their_own
        test_shards.py test_a_full_queue_is_a_plain_queue_s test_what_counts_a_whole_queue_is_refused
        """,
    ),
    Difference(
        "blocked",
        "a call that waits asks the shards again and again, and does not block",
        """
        test_operate.py test_who_waits_notices_at_once
        test_reclaim.py test_a_cancelled_lease_call
        """,
    ),
    Difference(
        "ends",
        "without a history, a waiter is told of a job that was removed as of one without a result",
        """
        test_receipts.py test_it_is_told_at_once_why_there_will_be_none[cancelled]
            test_it_is_told_at_once_why_there_will_be_none[deleted]
        test_results.py test_a_job_that_will_have_no_result[cancelled]
            test_a_job_that_will_have_no_result[cancelled by payload]
            test_a_job_that_will_have_no_result[deleted] test_a_job_that_will_have_no_result[purged]
        """,
    ),
    Difference(
        "ids",
        "an id like those of jobs without one is refused, as it names a shard",
        """
        test_enqueue.py test_id_is_kept test_ids[1-1] test_ids[9999999999999999999999999-1]
        test_priorities.py test_an_id_is_one_job_in_all_levels
        """,
    ),
    Difference(
        "keys",
        "the test looks at the keys of the queue, or writes to them, and those of its shards have other names",
        """
        test_admission.py test_an_id_stays_taken_after_its_job
        test_close.py test_one_that_goes_on_is_there_again test_users_that_come_and_go
            test_what_is_held_stays_leased
        test_codec.py test_a_codec_of_your_own test_entries_without_data test_json
        test_delays.py test_a_delay_by_another_client_while_a_reader_is_blocked
        test_enqueue.py test_a_later_part_fails test_foreign_fields_stay test_foreign_producers
            test_ids_that_are_not_consecutive test_the_first_part_fails test_unchecked_adds
            test_unchecked_adds_come_back
        test_events.py test_a_moment_that_no_calendar_has test_what_is_no_message_of_ours
        test_foreign.py test_an_id_that_is_no_utf8_is_free_again test_schedules_registrations_and_releases
        test_history.py test_it_is_bounded_and_so_is_its_time
        test_inspect.py test_delete test_entry_ids_never_repeat
        test_inspector.py test_the_law_is_seen_to_be_broken test_trends
        test_leases.py test_ghosts_do_not_end_the_waiting test_woken
        test_operate.py test_a_foreign_consumer_is_failed
            test_an_id_that_is_the_name_of_its_own_entry_ends_with_its_job
            test_nothing_is_handed_out_while_paused
        test_ordered.py test_a_blocked_reader_is_woken_as_a_turn_is_passed_on test_a_group_that_was_lost
            test_any_key_and_any_entry test_repair_forgets_turns_of_what_is_gone
            test_the_turn_is_passed_on_however_a_job_leaves[XDEL]
        test_priorities.py test_a_bare_xadd_to_the_stream_of_a_level test_a_header_that_is_no_level
            test_foreign_additions_are_counted test_repair_registers_ids_in_the_streams_of_levels
            test_stranded_ones_are_parked_in_their_level test_without_ageing_it_waits
        test_reasons.py test_a_dead_letter_has_its_own test_a_foreign_producer_may_write_anything
            test_it_ends_with_the_job
        test_reclaim.py test_a_deadline_ends_with_its_lease
            test_a_queue_that_was_declared_dead_leases_on[removed] test_consumers_that_nobody_registered
            test_deleted_while_it_was_leased test_tokens_grow_though_the_group_is_lost
        test_repair.py test_a_delayed_job_without_its_body test_a_delayed_job_without_its_due_time
            test_a_full_server test_a_group_that_was_destroyed test_a_group_that_was_set_back
            test_a_group_that_was_set_beyond_the_end test_a_key_of_another_type
            test_a_queue_that_is_not_there_stays_so test_a_stranded_job_wakes_who_waits
            test_a_stream_that_was_deleted test_a_wake_stream_that_was_deleted test_attempts_of_a_stranded_job
            test_corruption_while_workers_run test_ids_of_jobs_that_are_gone_are_released
            test_jobs_take_their_ids test_leftovers test_lost_counters test_pending_entries_without_a_job
            test_several_repairs_at_once_mend_each_damage_once test_stranded_jobs_go_to_the_front
            test_the_law_holds_again test_workers_that_are_known_by_half
        test_schedules.py test_a_reader_that_waits_takes_part test_an_id_that_is_taken test_replaced
            test_what_somebody_else_wrote_stops_nobody
        test_semantics.py test_a_foreign_entry_stops_nothing test_a_stale_lease_decides_nothing
            test_an_empty_queue_keeps_little test_fields_in_one_order
        test_settle.py test_result_expires
        test_stream_traps.py test_t10_entry_ids_never_repeat test_t11_what_was_added_before_the_group
            test_t12_an_emptied_queue_goes_on_counting test_t16_set_back_by_hand test_t18_nothing_dangles
            test_t1_a_deleted_job_is_not_completed test_t2_counts_need_no_lag test_t3_coming_back_is_no_delivery
            test_t6_a_renewal_does_not_steal test_t8_the_queue_vanishes_under_a_reader[by_destroy]
            test_t9_a_deleted_queue_has_nothing_pending
        test_sweep.py test_an_expired_lease_behind_many_is_found_soon
            test_leases_that_last_alike_are_taken_back_by_xautoclaim test_many_that_expire_at_once
            test_the_sweep_of_a_queue_with_priorities test_what_is_not_an_expired_lease_is_not_touched
        """,
    ),
]
