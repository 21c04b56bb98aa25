#pragma once

// Threads that go in step.
#define STEP_WIDTH 32

// How a particle answers its pull.
enum Temper : int {
    SLUGGISH = 2,
    RATCHET = 3,
};
