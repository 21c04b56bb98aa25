#pragma once

// Writes a statement twice: where a flag that is known at run time is a constant.
#define SPLIT_BY_FLAG(flag, Name, ...)     \
    do {                                   \
        if (flag) {                        \
            constexpr bool Name = true;    \
            __VA_ARGS__                    \
        } else {                           \
            constexpr bool Name = false;   \
            __VA_ARGS__                    \
        }                                  \
    } while (0)
