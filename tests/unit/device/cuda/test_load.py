"""A load keeps batches of replays ahead of the GPU and times calls between their ends."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tuner.device.cuda import energy
from tuner.device.cuda.driver import CudaError
from tuner.device.cuda.energy import BATCHES_AHEAD, QueuedReplays

RESULTS = energy.driver.CUresult
REPLAY_MS = 2.0


class Gpu:
    """A driver whose events end when the test says so; each batch takes its replays' time."""

    CUresult = RESULTS

    def __init__(self) -> None:
        self.launched = self.ended = self.destroyed = self.synchronized = 0
        self.at_launch: list[int] = []
        self.failure = RESULTS.CUDA_SUCCESS

    def cuEventCreate(self, flags):  # noqa: N802
        self.at_launch.append(self.launched)
        return RESULTS.CUDA_SUCCESS, len(self.at_launch) - 1

    def cuEventRecord(self, event, stream):  # noqa: N802
        return (RESULTS.CUDA_SUCCESS,)

    def cuEventQuery(self, event):  # noqa: N802
        if self.failure is not RESULTS.CUDA_SUCCESS:
            return (self.failure,)
        return (RESULTS.CUDA_SUCCESS if event < self.ended else RESULTS.CUDA_ERROR_NOT_READY,)

    def cuEventElapsedTime(self, first, last):  # noqa: N802
        replays = self.at_launch[last] - self.at_launch[first]
        return RESULTS.CUDA_SUCCESS, replays * REPLAY_MS

    def cuEventDestroy(self, event):  # noqa: N802
        self.destroyed += 1

    def cuStreamSynchronize(self, stream):  # noqa: N802
        self.synchronized += 1

    def cuGetErrorString(self, status):  # noqa: N802
        return RESULTS.CUDA_SUCCESS, b""

    def launch(self, stream) -> None:
        self.launched += 1


@pytest.fixture
def gpu(monkeypatch) -> Gpu:
    gpu = Gpu()
    monkeypatch.setattr(energy, "driver", gpu)
    return gpu


def load_on(gpu: Gpu, replays: int = 5) -> QueuedReplays:
    return QueuedReplays(SimpleNamespace(launch=gpu.launch, calls=40), replays, stream=0)


def test_it_stays_so_many_batches_ahead_and_no_more(gpu):
    load = load_on(gpu)
    for _ in range(3):
        load.keep_up()
    assert gpu.launched == BATCHES_AHEAD * 5
    gpu.ended = 2
    load.keep_up()
    assert load.batches_done() == 2
    assert gpu.launched == (BATCHES_AHEAD + 2) * 5


def test_the_time_of_a_call_is_that_between_two_ends(gpu):
    load = load_on(gpu)
    load.keep_up()
    gpu.ended = 3
    assert load.time_us(1, load.batches_done()) == pytest.approx(REPLAY_MS * 1e3 / 40)


def test_a_failure_of_the_gpu_is_raised(gpu):
    load = load_on(gpu)
    load.keep_up()
    gpu.failure = RESULTS.CUDA_ERROR_LAUNCH_FAILED
    with pytest.raises(CudaError, match="CUDA_ERROR_LAUNCH_FAILED"):
        load.batches_done()


def test_closing_waits_and_releases_every_event(gpu):
    load = load_on(gpu)
    load.keep_up()
    load.close()
    assert (gpu.synchronized, gpu.destroyed) == (1, BATCHES_AHEAD)
