"""How fast a GPU streams large arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

PROBE_BYTES = 1 << 29
PROBE_REPEATS = 20


def streaming_gbps(cupy: Any) -> float:
    """Measure the rate of reading two large arrays and writing one, in GB/s."""

    def rate(dtype: str) -> float:
        count = PROBE_BYTES // cupy.dtype(dtype).itemsize
        a, b, c = (cupy.ones(count, dtype) for _ in range(3))
        times = []
        for _ in range(PROBE_REPEATS):
            start, stop = cupy.cuda.Event(), cupy.cuda.Event()
            start.record()
            cupy.add(a, b, out=c)
            stop.record()
            stop.synchronize()
            times.append(cupy.cuda.get_elapsed_time(start, stop))
        return 3 * PROBE_BYTES / float(np.median(times[3:])) / 1e6

    # 8 or 16 bytes an access: which of them is better depends on the GPU.
    return max(map(rate, ("float64", "complex128")))
