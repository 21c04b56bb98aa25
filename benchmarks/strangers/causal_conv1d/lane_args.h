#pragma once

#include <stdint.h>

// What every kernel over (clip, lane, time) is told. A stride is counted in elements.
struct LaneArgs {
    typedef uint32_t step_t;

    int clips;
    int lanes;
    int samples;
    int window;
    bool fold_sign;

    void *__restrict__ signal;
    void *__restrict__ slack;  // one number a lane, may be null
    void *__restrict__ result;

    step_t signal_clip_stride;
    step_t signal_lane_stride;
    step_t result_clip_stride;
    step_t result_lane_stride;
};

struct LatchArgs : LaneArgs {
    void *__restrict__ creep;
    void *__restrict__ memory;  // (clips, lanes, 2): what is held, and for how many samples

    step_t memory_clip_stride;
    step_t memory_lane_stride;
};
