"""The launcher that exported packages ship: what it enqueues, and what goes to the fallback."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from fake_gpu import H200, FakeTensor, fake_gpu  # noqa: E402

from tuner.extensions.runtime.pytorch.driver import Config, Driver, Launch, Map  # noqa: E402
from tuner.extensions.runtime.pytorch.runtime import (  # noqa: E402
    Array,
    Numbers,
    Operator,
    Plan,
    Scalar,
    Table,
    TunedKernelError,
    Variant,
    of_one_problem,
    serving,
)

NUMBERS = Numbers(132, 232448)


def small(rows: int, width: int, gpu: Numbers) -> bool:
    return rows <= 64


def twice(rows: int, width: int, gpu: Numbers) -> tuple[Launch | None, ...]:
    return (
        Launch("scale", (rows, 2), (128,), None, 0, True),
        Launch("scale", (rows,), (128,), (16,), 60000, False) if width > 8 else None,
    )


def table(folder: Path) -> Table:
    """Scale rows: out[t] = factor * x[t], with some scratch."""
    (folder / "v1.cubin").write_bytes(b"code")
    return Table(
        name="scale",
        device="NVIDIA H200",
        capability=(9, 0),
        axes=("T", "D"),
        given=(),
        order=(
            Array("out", "bfloat16", "output"),
            Scalar("factor", "float32", 2.0),
            Array("x", "bfloat16", "input"),
            Array("room", "int32", "scratch"),
            Scalar("T", "int32"),
        ),
        read_axes=lambda out, x: (out[0], out[1]),
        shapes=lambda rows, width: ((rows, width), (rows, width)),
        scratch_bytes=lambda rows, width: (4 * rows,),
        scalars=lambda rows, width: (2.0, rows),
        variants=(Variant(1, "v1.cubin", {"scale": "_Z5scale"}, {"scale": 64}, small, twice),),
        points=(((1, 8), 1), ((64, 8), 1), ((4096, 8), 0)),
        folder=folder,
    )


class FakeDriver(Driver):
    """Note what is asked of the driver, and read launches as it would."""

    def __init__(self) -> None:
        self.said: list[tuple[Any, ...]] = []
        self.launched: list[dict[str, Any]] = []
        self.launch = self._launch  # type: ignore[assignment]
        self.status = 0
        # Captures by the streams that take part in them.
        self.captures: dict[int, int] = {}

    def load(self, cubin: bytes) -> int:
        self.said.append(("load", cubin))
        return 77

    def kernel(self, library: int, symbol: str) -> int:
        self.said.append(("kernel", library, symbol))
        return 5

    def zeros(self, size_bytes: int) -> int:
        self.said.append(("zeros", size_bytes))
        return len(self.said) << 20

    def capture(self, stream: int) -> int:
        return self.captures.get(stream, 0)

    def set(self, kernel: int, attribute: int, value: int, device: int) -> None:
        self.said.append(("set", kernel, attribute, value, device))

    def error(self, status: int) -> str:
        return "CUDA_ERROR_LAUNCH_FAILED"

    def _launch(self, where: int, kernel: int, parameters: int, extra: None) -> int:
        config = Config.from_address(where)
        pointers = (ctypes.c_void_p * 5).from_address(parameters)
        kinds = (ctypes.c_void_p, ctypes.c_float, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32)
        values = [kind.from_address(at).value for kind, at in zip(kinds, pointers, strict=True)]
        attributes = [config.attributes[i] for i in range(config.attribute_count)]
        self.launched.append(
            {
                "grid": (config.grid.x, config.grid.y, config.grid.z),
                "block": config.block.x,
                "shared": config.shared_bytes,
                "stream": config.stream,
                "attributes": [one.id for one in attributes],
                "values": values,
            }
        )
        return self.status


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Two H200s; the first is current."""
    return fake_gpu(monkeypatch)


@pytest.fixture
def driver() -> FakeDriver:
    return FakeDriver()


@pytest.fixture
def operator(gpu: SimpleNamespace, driver: FakeDriver, tmp_path: Path) -> Operator:
    return Operator(table(tmp_path), driver=lambda: driver)


def test_a_call_is_enqueued_with_its_addresses_scalars_and_stream(
    operator: Operator, driver: FakeDriver
) -> None:
    operator.call((FakeTensor(16, 8, at=4096), FakeTensor(16, 8, at=8192)))
    (made,) = driver.launched
    assert made["grid"] == (16, 2, 1)
    assert (made["block"], made["shared"], made["stream"]) == (128, 0, 900)
    assert made["attributes"] == [6], "programmatic stream serialization"
    out, factor, x, scratch, rows = made["values"]
    assert (out, factor, x, rows) == (4096, 2.0, 8192, 16)
    assert scratch
    assert operator.calls == {1: 1}


def test_code_is_loaded_once_and_shapes_are_planned_once(
    operator: Operator, driver: FakeDriver
) -> None:
    for size in (16, 16, 17):
        operator.call((FakeTensor(size, 8), FakeTensor(size, 8)))
    assert [one for one in driver.said if one[0] == "load"] == [("load", b"code")]
    assert [one["values"][-1] for one in driver.launched] == [16, 16, 17]


def test_a_caller_gives_scalars_for_one_call(operator: Operator, driver: FakeDriver) -> None:
    tensors = FakeTensor(16, 8), FakeTensor(16, 8)
    operator.call(tensors, factor=0.5)
    operator.call(tensors)
    assert [one["values"][1] for one in driver.launched] == [0.5, 2.0]


def test_a_scalar_that_is_written_into_the_code_has_one_value(
    gpu: SimpleNamespace, driver: FakeDriver, tmp_path: Path
) -> None:
    found = table(tmp_path)
    (one,) = found.variants
    fixed = replace(found, variants=(replace(one, fixed=("factor",)),))
    operator = Operator(fixed, driver=lambda: driver)
    tensors = FakeTensor(16, 8), FakeTensor(16, 8)
    operator.call(tensors)
    operator.call(tensors, factor=2.0)
    with pytest.raises(TunedKernelError, match=r"factor is 0\.5, and 2 is written into its code"):
        operator.call(tensors, factor=0.5)
    assert len(driver.launched) == 2


def test_a_cluster_and_much_shared_memory_are_asked_for(
    operator: Operator, driver: FakeDriver
) -> None:
    operator.call((FakeTensor(16, 16), FakeTensor(16, 16)))
    _, second = driver.launched
    assert second["shared"] == 60000
    assert second["attributes"] == [4], "cluster dimension"
    asked = [one[2:] for one in driver.said if one[0] == "set"]
    assert asked == [(8, 60000, 0), (14, 1, 0)]


def test_arrays_of_another_device_are_worked_on_there(
    operator: Operator, driver: FakeDriver, gpu: SimpleNamespace
) -> None:
    operator.call((FakeTensor(16, 8, device=1), FakeTensor(16, 8, device=1)))
    assert gpu.entered == [1]
    assert driver.launched[0]["stream"] == 901


def test_a_launch_that_fails_says_why(operator: Operator, driver: FakeDriver) -> None:
    driver.status = 719
    with pytest.raises(RuntimeError, match="scale: CUDA_ERROR_LAUNCH_FAILED"):
        operator.call((FakeTensor(16, 8), FakeTensor(16, 8)))


def sliced(shape: tuple[int, int]) -> FakeTensor:
    one = FakeTensor(*shape)
    one.contiguous = False
    return one


UNSUITED: list[tuple[str, Callable[[], tuple[FakeTensor, FakeTensor]]]] = [
    ("x is torch.float16, not torch.bfloat16",
     lambda: (FakeTensor(16, 8), FakeTensor(16, 8, dtype=torch.float16))),
    ("x is not contiguous", lambda: (FakeTensor(16, 8), sliced((16, 8)))),
    ("x is on cuda:1, not on cuda:0", lambda: (FakeTensor(16, 8), FakeTensor(16, 8, device=1))),
    ("multiple of 16 bytes", lambda: (FakeTensor(16, 8), FakeTensor(16, 8, at=4100))),
    ("shapes that it is not for: out (16, 8), x (16, 9)",
     lambda: (FakeTensor(16, 8), FakeTensor(16, 9))),
    ("shapes that it is not for: out (8,), x (8,)", lambda: (FakeTensor(8), FakeTensor(8))),
    ("shapes that it is not for: out (0, 8)", lambda: (FakeTensor(0, 8), FakeTensor(0, 8))),
    ("nothing is proved faster at T=4096, D=8", lambda: (FakeTensor(4096, 8), FakeTensor(4096, 8))),
    ("its arrays are on cuda:-1", lambda: (FakeTensor(16, 8, device=-1), FakeTensor(16, 8))),
]  # fmt: skip


@pytest.mark.parametrize(("why", "tensors"), UNSUITED, ids=[why for why, _ in UNSUITED])
def test_what_it_is_not_for_goes_to_the_fallback_and_is_said_once(
    operator: Operator,
    driver: FakeDriver,
    caplog: pytest.LogCaptureFixture,
    why: str,
    tensors: Callable[[], tuple[FakeTensor, FakeTensor]],
) -> None:
    with pytest.raises(TunedKernelError) as caught:
        operator.call(tensors())
    assert why in str(caught.value)
    taken: list[Any] = []
    operator.fallback = lambda *given, **scalars: taken.append((given, scalars))
    for _ in range(2):
        operator.call(tensors(), factor=3.0)
    assert [scalars for _, scalars in taken] == [{"factor": 3.0}] * 2
    assert not driver.launched
    assert operator.calls == {0: 2}
    assert sum(why in one.message for one in caplog.records) == 1


def test_an_attempt_is_enqueued_or_not_made(
    operator: Operator, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.extensions.runtime.pytorch.runtime.PLAIN", {FakeTensor})
    taken: list[Any] = []
    operator.fallback = lambda *given, **_: taken.append(given)
    with torch.no_grad():
        assert operator.attempt(FakeTensor(16, 8), FakeTensor(16, 8), factor=0.5)
        assert not operator.attempt(FakeTensor(4096, 8), FakeTensor(4096, 8))
        assert not operator.attempt(*arrays())
    assert [one["values"][1] for one in driver.launched] == [0.5]
    assert operator.calls == {1: 1}
    assert not taken


def test_another_gpu_is_served_where_the_caller_says_so(
    operator: Operator, driver: FakeDriver, gpu: SimpleNamespace
) -> None:
    gpu.properties = SimpleNamespace(**{**vars(H200), "name": "NVIDIA H100"})
    tensors = FakeTensor(16, 8), FakeTensor(16, 8)
    with pytest.raises(TunedKernelError, match="tuned for NVIDIA H200, not for NVIDIA H100"):
        operator.call(tensors)
    operator.devices.add("NVIDIA H100")
    operator._forget()
    operator.call(tensors)
    assert driver.launched


def test_who_would_serve_is_said_without_a_call(operator: Operator, gpu: SimpleNamespace) -> None:
    assert operator.launches_at(0, (16, 8)) == (1, [twice(16, 8, NUMBERS)[0]])
    assert operator.launches_at(0, (3000, 8)) == (0, [])
    gpu.properties = SimpleNamespace(**{**vars(H200), "name": "NVIDIA H100"})
    assert operator.launches_at(0, (16, 8)) == (0, [])
    assert not operator.plans


def test_the_nearest_shape_whose_variant_may_run_serves(tmp_path: Path) -> None:
    found = table(tmp_path)
    served = [serving(found, (rows, 8), NUMBERS) for rows in (1, 64, 65, 3000)]
    assert [one.number if one else 0 for one in served] == [1, 1, 0, 0]
    (one,) = found.variants
    broken = replace(found, variants=(replace(one, launches=lambda rows, width, gpu: (1 // 0,)),))
    assert serving(broken, (1, 8), NUMBERS) is None
    large = replace(found, variants=(replace(one, static_bytes={"scale": 232449}),))
    assert serving(large, (1, 8), NUMBERS) is None
    beside = replace(found, variants=(replace(one, static_bytes={"scale": 0, "other": 232449}),))
    assert serving(beside, (1, 8), NUMBERS) == beside.variants[0], "another kernel's is its own"


@pytest.fixture
def library() -> Iterator[Any]:
    """A namespace of its own, which ends with the test."""
    with torch.library._scoped_library("tune_test", "FRAGMENT") as opened:
        yield opened


@pytest.fixture
def registered(library: Any, tmp_path: Path) -> Operator:
    made = Operator(table(tmp_path))
    made.register(library)
    made.fallback = lambda out, x, factor=2.0: out.copy_(factor * x)
    return made


def arrays() -> tuple[Any, Any]:
    return torch.zeros(4, 8, dtype=torch.bfloat16), torch.randn(4, 8, dtype=torch.bfloat16)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_it_is_part_of_a_compiled_graph(registered: Operator, backend: str) -> None:
    def step(x: Any) -> Any:
        out = torch.empty_like(x)
        registered(out, x + 1.0, factor=0.5)
        return out - 1.0

    _, x = arrays()
    compiled = torch.compile(step, fullgraph=True, backend=backend)
    assert torch.equal(compiled(x), step(x))


def test_pytorch_knows_what_it_writes(registered: Operator) -> None:
    found = torch.library.opcheck(torch.ops.tune_test.scale.default, arrays())
    assert set(found.values()) == {"SUCCESS"}
    schema = str(torch.ops.tune_test.scale.default._schema)
    assert schema.startswith("tune_test::scale(Tensor(a!) out, Tensor x, *, float factor=2.")


def test_tensors_without_memory_are_only_traced(registered: Operator) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        registered(*arrays())
    assert not registered.calls


def test_an_attempt_is_traced_where_a_fallback_can_take_it(registered: Operator) -> None:
    """As passes over a compiled graph trace what they put into it."""
    from torch.fx.experimental.proxy_tensor import make_fx

    def attempted(out: Any, x: Any) -> Any:
        return out if registered.attempt(out, x) else x

    def targets() -> list[str]:
        graph = make_fx(attempted, tracing_mode="symbolic")(*arrays()).graph
        return [str(one.target) for one in graph.nodes if one.op == "call_function"]

    assert targets() == ["tune_test.scale.default"]
    registered.fallback = None
    assert not targets()


def test_a_quiet_operator_says_nothing_of_its_fallback(
    registered: Operator, caplog: pytest.LogCaptureFixture
) -> None:
    registered.quiet = True
    registered(*arrays())
    assert registered.calls == {0: 1}
    assert not [one for one in caplog.records if one.levelno > logging.DEBUG]


def test_there_is_no_derivative(registered: Operator) -> None:
    out, x = arrays()
    wanted = x.requires_grad_()
    for call in (registered, torch.ops.tune_test.scale):
        with pytest.raises(TunedKernelError, match="scale has no derivative"):
            call(out, wanted)
    assert not registered.attempt(out, wanted)
    with torch.no_grad():
        registered(out, wanted)
        assert torch.equal(out, 2.0 * wanted)


@pytest.fixture
def counting(gpu: SimpleNamespace, driver: FakeDriver, tmp_path: Path) -> Operator:
    """The operator with zeros for scratch."""
    made = table(tmp_path)
    order = [replace(a, zeroed=True) if a.name == "room" else a for a in made.order]
    return Operator(replace(made, order=tuple(order)), driver=lambda: driver)


def launching(table: Table, one: Launch) -> Table:
    """Have the table's one variant make this launch."""
    (variant,) = table.variants
    return replace(table, variants=(replace(variant, launches=lambda *_: (one,)),))


def rooms(driver: FakeDriver) -> list[int]:
    return [made["values"][3] for made in driver.launched]


def test_zeros_are_made_once_for_a_stream_and_for_each_capture_of_it(
    counting: Operator, driver: FakeDriver
) -> None:
    def call(rows: int = 16) -> None:
        counting.call((FakeTensor(rows, 8), FakeTensor(rows, 8)))

    call()
    call(rows=64)
    for number in (7, 7, 8):
        driver.captures[900] = number
        call()
    driver.captures.clear()
    call()
    own, again, captured, same, other, after = rooms(driver)
    assert own == again == after
    assert captured == same
    assert len({own, captured, other}) == 3
    assert [one for one in driver.said if one[0] == "zeros"] == [("zeros", 4096)] * 3


def test_more_zeros_are_made_where_a_shape_needs_more(
    counting: Operator, driver: FakeDriver
) -> None:
    wide = replace(counting.table, scratch_bytes=lambda rows, width: (1000 * rows,))
    operator = Operator(wide, driver=lambda: driver)
    for rows in (1, 16, 8):
        operator.call((FakeTensor(rows, 8), FakeTensor(rows, 8)))
    small, large, between = rooms(driver)
    assert small != large == between
    assert [one for one in driver.said if one[0] == "zeros"] == [("zeros", 4096), ("zeros", 16384)]


def test_a_launch_is_given_the_arguments_of_its_own(counting: Operator, driver: FakeDriver) -> None:
    own = Launch("scale", (1,), (32,), None, 0, False, (3, 0))
    operator = Operator(launching(counting.table, own), driver=lambda: driver)
    read: list[list[int]] = []

    def note(where: int, kernel: int, parameters: int, extra: None) -> int:
        pointers = (ctypes.c_void_p * 2).from_address(parameters)
        read.append([ctypes.c_uint64.from_address(one).value for one in pointers])
        return 0

    driver.launch = note
    operator.call((FakeTensor(16, 8, at=4096), FakeTensor(16, 8, at=8192)))
    ((scratch, out),) = read
    assert out == 4096
    assert scratch not in (0, 4096, 8192)


def test_a_map_follows_its_array_and_is_encoded_once_for_each_place(
    counting: Operator, driver: FakeDriver
) -> None:
    one = Map(2, 9, 2, (8, 16), (16,), (8, 8), 0, 128, 128)
    own = Launch("scale", (1,), (32,), None, 0, False, (0,), (one,))
    operator = Operator(launching(counting.table, own), driver=lambda: driver)
    taken, encoded = list[tuple[int, int]](), list[int]()

    def encode(one: Map, address: int, to: ctypes.Array[ctypes.c_char]) -> None:
        assert ctypes.addressof(to) % 64 == 0
        encoded.append(address)
        ctypes.c_uint64.from_buffer(to).value = address

    def note(where: int, kernel: int, parameters: int, extra: None) -> int:
        pointers = (ctypes.c_void_p * 2).from_address(parameters)
        values = [ctypes.c_uint64.from_address(one).value for one in pointers]
        taken.append((values[0], values[1]))
        return 0

    driver.encode, driver.launch = encode, note  # type: ignore[method-assign]
    for place in (4096, 4096, 8192, 4096):
        operator.call((FakeTensor(16, 8, at=64), FakeTensor(16, 8, at=place)))
    assert taken == [(64, place) for place in (4096, 4096, 8192, 4096)]
    assert encoded == [4096, 8192]


@pytest.mark.parametrize(
    ("grid", "block", "cluster", "serves"),
    [
        ((16,), (32,), (8,), True),
        ((15,), (32,), (8,), False),
        ((16,), (32,), (1, 2), False),
        ((16, 2), (32,), (8, 2), True),
        ((1,), (1, 1, 64), None, True),
        ((1,), (1, 1, 65), None, False),
        ((1,), (1, 0), None, False),
    ],
)
def test_a_variant_whose_clusters_do_not_divide_the_grid_or_whose_block_is_none_is_passed_over(
    operator: Operator,
    grid: tuple[int, ...],
    block: tuple[int, ...],
    cluster: tuple[int, ...] | None,
    serves: bool,
) -> None:
    table = launching(operator.table, Launch("scale", grid, block, cluster, 0, False))
    assert (serving(table, (16, 8), NUMBERS) is not None) is serves


LISTED = (((1, 8), 1), ((64, 8), 1), ((1, 9), 1))


@pytest.mark.parametrize(
    ("points", "most", "axes", "serves"),
    [
        (LISTED, 1 << 20, (500, 8), True),  # another size of a listed problem
        (LISTED, 1 << 20, (500, 10), False),  # of another nothing is known
        (LISTED, 64, (16, 8), False),  # it would change hands at a size
        ((*LISTED, ((4096, 8), 0)), 1 << 20, (16, 8), False),
    ],
)
def test_where_bits_of_rows_are_kept_a_listed_problem_is_served_at_every_size_or_at_none(
    operator: Operator,
    points: tuple[Any, ...],
    most: int,
    axes: tuple[int, int],
    serves: bool,
) -> None:
    variant = replace(operator.table.variants[0], fits=lambda rows, *_: rows <= most)
    table = replace(operator.table, points=points, variants=(variant,), rows=0)
    assert (serving(of_one_problem(table, axes, NUMBERS), axes, NUMBERS) is not None) is serves


def test_an_operator_keeps_rows_where_its_table_says_so(
    operator: Operator, gpu: SimpleNamespace
) -> None:
    assert not operator.keep_rows()
    kept = Operator(replace(operator.table, rows=0), driver=FakeDriver)
    kept.plans[()] = Plan(0)
    assert kept.keep_rows()
    assert not kept.plans, "what was planned before may be another problem's"


def test_a_variant_whose_map_the_driver_does_not_take_is_passed_over(operator: Operator) -> None:
    one = Map(2, 9, 2, (9, 16), (18,), (8, 8), 0, 128, 144)
    own = Launch("scale", (1,), (32,), None, 0, False, (0,), (one,))
    table = replace(launching(operator.table, own), points=(((1, 8), 1),))
    assert serving(table, (16, 9), NUMBERS) is None


def test_a_map_goes_to_the_driver_as_it_takes_it() -> None:
    driver, given = object.__new__(Driver), list[Any]()
    driver.call = lambda name, *arguments: given.extend(arguments)  # type: ignore[method-assign]
    room = ctypes.create_string_buffer(128)
    driver.encode(Map(2, 9, 2, (64, 6, 5), (128, 768), (32, 4, 1), 64, 256, 1920), 4096, room)
    assert [one.value for one in (*given[1:4], *given[8:])] == [9, 3, 4096, 0, 2, 3, 0]
    sizes, strides, box, steps = ([*one] for one in given[4:8])
    assert (sizes, strides[:2], box, steps) == ([64, 6, 5], [128, 768], [32, 4, 1], [1, 1, 1])


def test_zeros_are_made_beside_what_is_being_captured() -> None:
    driver, said = object.__new__(Driver), list[str]()

    def note(name: str, *_: object) -> None:
        said.append(name)

    driver.call = note  # type: ignore[method-assign]
    driver.zeros(64)
    exchange = "cuThreadExchangeStreamCaptureMode"
    assert [said[0], said[-1]] == [exchange, exchange]
    made = ["cuMemAlloc_v2", "cuStreamCreate", "cuMemsetD8Async", "cuStreamSynchronize"]
    assert said[1:-1] == [*made, "cuStreamDestroy_v2"]
