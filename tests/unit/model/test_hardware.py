import pytest

from tuner.model.errors import DeviceError
from tuner.model.hardware import COMPUTE_CAPABILITIES, architecture_for, limits_for


def test_covers_every_generation_from_turing_to_blackwell():
    assert COMPUTE_CAPABILITIES == (
        (7, 5),
        (8, 0),
        (8, 6),
        (8, 7),
        (8, 9),
        (9, 0),
        (10, 0),
        (10, 3),
        (11, 0),
        (12, 0),
        (12, 1),
    )


@pytest.mark.parametrize("compute_capability", COMPUTE_CAPABILITIES)
def test_one_block_may_take_all_of_a_multiprocessors_shared_memory(compute_capability):
    limits = limits_for(compute_capability)

    assert limits.compute_capability == compute_capability
    whole = limits.shared_bytes_per_block + limits.reserved_shared_bytes
    assert whole == limits.shared_bytes_per_multiprocessor


def test_an_unknown_compute_capability_is_an_error_that_names_the_known_ones():
    with pytest.raises(DeviceError) as caught:
        limits_for((6, 1))

    assert "6.1" in str(caught.value)
    assert "7.5, 8.0" in str(caught.value)


@pytest.mark.parametrize(
    ("compute_capability", "architecture"),
    [
        ((7, 5), "sm_75"),
        ((8, 9), "sm_89"),
        ((9, 0), "sm_90a"),
        ((10, 0), "sm_100a"),
        ((10, 3), "sm_103a"),
        ((11, 0), "sm_110a"),
        ((12, 1), "sm_121a"),
    ],
)
def test_names_the_real_architecture(compute_capability, architecture):
    assert architecture_for(compute_capability) == architecture
