"""Webhooks through a pooler: each event once and in order, among copies of the loop."""

from __future__ import annotations

from tests.engine.test_webhooks import (  # noqa: F401
    deliver,
    guarded,
    holdfast_settings,
    hook,
    receiver,
    test_a_failed_delivery_is_repeated_under_the_same_id_before_anything_else,
    test_copies_of_the_loop_deliver_each_event_once,
    test_events_arrive_signed_in_order_and_once,
)
