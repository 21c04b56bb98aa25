"""The built-in diagnoses."""

from __future__ import annotations

from tuner.profiler.base import Rule
from tuner.profiler.diagnosis import (
    bank_conflicts,
    barrier_stalls,
    coalescing,
    divergence,
    instruction_mix,
    l2_hit_rate,
    launch_overhead,
    occupancy,
    redundant_traffic,
    register_spills,
    tail,
    tensor_cores,
    vector_width,
    warp_stalls,
)

# In the order in which equally weighty findings are told.
RULES: tuple[Rule, ...] = (
    redundant_traffic.RULE,
    tail.RULE,
    launch_overhead.RULE,
    register_spills.RULE,
    occupancy.RULE,
    coalescing.RULE,
    vector_width.RULE,
    warp_stalls.RULE,
    barrier_stalls.RULE,
    bank_conflicts.RULE,
    tensor_cores.RULE,
    divergence.RULE,
    l2_hit_rate.RULE,
    instruction_mix.RULE,
)
