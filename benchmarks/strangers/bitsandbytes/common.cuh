#pragma once

#define BNB_WARP_SIZE 32

typedef enum Optimizer_t {
    MOMENTUM = 1,
    LION = 5,
} Optimizer_t;
