"""What every method has to hold: the checks of ``apportion conformance --method`` and of the tests of this tree."""

from __future__ import annotations

CHECKS = (
    *("cuts:is_complete", "cuts:init_is_the_models_own", "cuts:levels_are_a_ladder", "cuts:cut_is_what_its_shape_says"),
    *("cuts:cut_builds_a_module_that_runs", "cuts:smaller_levels_are_smaller", "cuts:same_arguments_same_bytes"),
    *("sums:state_is_left_alone", "sums:untrained_devices_change_nothing", "sums:equal_devices_count_as_one"),
    *("sums:new_state_has_the_old_shapes", "sums:evaluated_models_run", "sums:whole_state_is_in_the_state"),
    *("bad_input:unknown_options_are_refused", "bad_input:bad_updates_are_refused", "bad_input:no_updates_are_refused"),
    *("later_models:fresh_updates_are_rebased_exactly", "later_models:nothing_learnt_changes_nothing"),
    "later_models:old_updates_move_as_far",
)
"""``file:function`` in this folder; each takes a :class:`~coordinator.conformance.methods.subject.Subject`."""
