"""The launch of a draft follows what it comes from; what may not follow is no parameter."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tuner.compiler.pool import NvrtcPool
from tuner.extensions.draft.drafting import Asked, Draft, draft, draft_source
from tuner.source import parse_source, read_source
from tuner.space.yaml import parse

SCALE = """
__global__ void scale(float* y, const float* x, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = 3 * x[i];
}
"""
WALK = """
__global__ void walk(float* y, const float* x, int n) {
  extern __shared__ float part[];
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    y[i] = x[i] + 1;
}
"""
PEEL = """
#define PEEL 16
#define LAYERS 4
__global__ void peel(float* y, const float* x, int w, int h) {
  const int c = blockIdx.x * PEEL + threadIdx.x, r = blockIdx.y * PEEL + threadIdx.y;
  for (int k = 0; k < PEEL; k += LAYERS) y[(r + k) * w + c] = x[(r + k) * w + c];
}
__global__ void other(float* y, const float* x, int w, int h) { y[0] = x[0]; }
"""


def drafted(text: str, kernel: str | None = None) -> Draft:
    return draft(parse_source(text, Path("k.cu")), kernel)


def launch_of(made: Draft) -> dict[str, object]:
    return parse(made.space_yaml, made.space_path).data["launch"][0]


def test_a_grid_follows_a_member_of_a_class_template() -> None:
    text = "template <class T> struct Lump { static constexpr int count = 8 / sizeof(T); };\n"
    text += "using lump = Lump<float>;\n" + SCALE
    host = "(n + 128 * LUMP::count - 1) / (128 * LUMP::count)"
    host = f"void f(float* y, float* x, int n) {{ scale<<<{host}, 128>>>(y, x, n); }}\n"
    for owner in ("lump", "Lump<float>"):
        made = drafted(text + host.replace("LUMP", owner))
        assert "ceil_div(n, block_size * 2)" in made.space_yaml


def test_shared_memory_follows_a_member_of_the_block() -> None:
    made = drafted(
        WALK
        + "void f(float* y, float* x, int n) {\n  dim3 team(32, 2);\n"
        "  int bytes = team.y > 1 ? team.y * sizeof(float) : 0;\n"
        "  walk<<<64, team, bytes>>>(y, x, n);\n}\n".replace("blockDim.x", "blockDim.y")
    )
    assert launch_of(made)["block"] == [32, 2]
    text = WALK.replace("gridDim.x * blockDim.x", "gridDim.x * blockDim.x * blockDim.y")
    made = drafted(
        text + "void f(float* y, float* x, int n) {\n  dim3 team(64, 2);\n"
        "  int bytes = team.y > 1 ? team.y * sizeof(float) : 0;\n"
        "  walk<<<64, team, bytes>>>(y, x, n);\n}\n"
    )
    assert launch_of(made)["block"] == ["block_x", "block_y"]
    assert launch_of(made)["shared_memory"] == "block_y * 4 if block_y > 1 else 0"


def test_a_block_is_no_parameter_where_a_bare_number_of_bytes_may_come_from_it() -> None:
    made = drafted(WALK + "void f(float* y, float* x, int n) { walk<<<64, 256, 1024>>>(y, x, n); }")
    assert "block_size" not in made.parameters
    said = "block_size = 256 is left out: the shared memory of the launch may come from it"
    assert said in made.space_yaml
    made = drafted(
        WALK + "void f(float* y, float* x, int n) { walk<<<64, 256, 256 * 4>>>(y, x, n); }"
    )
    assert launch_of(made)["shared_memory"] == "block_size * 4"


def test_a_block_that_constants_multiply_to_is_no_second_parameter() -> None:
    made = drafted(
        "#define TEAMS 4\n#define CREW (TEAMS * 32)\n"
        + SCALE.replace("if (i", "__shared__ float s[TEAMS]; s[0] = 0; if (i")
        + "void f(float* y, float* x, int n) { scale<<<(n + CREW - 1) / CREW, CREW>>>(y, x, n); }"
    )
    assert "block_size" not in made.parameters
    assert launch_of(made)["block"] == ["teams * 32"]


@pytest.mark.parametrize("blocks", ["256", "blocks"])
def test_a_bare_number_of_blocks_is_not_the_blocks_size(blocks: str) -> None:
    host = f"  const int blocks = 256;\n  walk<<<{blocks}, 256>>>(y, x, n);\n"
    made = drafted(f"{WALK}void f(float* y, float* x, int n) {{\n{host}}}\n")
    assert launch_of(made)["block"] == ["block_size"]
    assert launch_of(made)["grid"] == ["ceil_div(256, vec)"]


def test_a_number_of_rows_is_no_parameter_where_the_grid_has_it_as_a_number() -> None:
    text = (
        "template <int ROWS> __global__ void rows(float* y, const float* x, int n) {\n"
        "  for (int r = 0; r < ROWS; ++r) y[blockIdx.x * ROWS + r] = x[blockIdx.x * ROWS + r];\n}\n"
        "void f(float* y, float* x, int n) { rows<SOME><<<n / SOME, 32>>>(y, x, n); }\n"
    )
    made = drafted(text.replace("SOME", "8"))
    assert launch_of(made)["grid"] in (["n // rows"], ["n // 8"])
    assert ("rows" in made.parameters) == (launch_of(made)["grid"] == ["n // rows"])


def test_a_rank_in_the_grid_asks_for_the_blocks_size() -> None:
    made = drafted(
        SCALE.replace("blockIdx.x * blockDim.x + threadIdx.x", "cg::this_grid().thread_rank()")
        + "void f(float* y, float* x, int n) { scale<<<(n + 127) / 128, 128>>>(y, x, n); }"
    )
    assert launch_of(made)["grid"] == ["ceil_div(n, block_size)"]


@pytest.mark.parametrize(
    "host",
    [
        "  void (*which)(float*, const float*, int, int) = &peel;\n",
        "  void (*which)(float*, const float*, int, int);\n  which = peel;\n",
        "  auto which = h > w ? &other : &peel;\n",
    ],
)
def test_a_launch_through_a_pointer_is_one_of_each_kernel_that_it_points_to(host: str) -> None:
    made = drafted(
        f"{PEEL}void f(float* y, float* x, int w, int h) {{\n{host}"
        "  dim3 grid(w / PEEL, h / PEEL), block(PEEL, LAYERS);\n"
        "  which<<<grid, block>>>(y, x, w, h);\n}\n",
        "peel",
    )
    assert launch_of(made)["grid"] == ["w // peel", "h // peel"]
    assert launch_of(made)["block"] == ["peel", "layers"]


def test_launches_are_seen_with_blanks_in_their_brackets(tmp_path: Path) -> None:
    path = tmp_path / "k.cu"
    path.write_text(
        SCALE + "void f(float* y, float* x, int n) { scale << <(n + 63) / 64, 64 >> > (y, x, n); }"
    )
    assert launch_of(draft(read_source(path)))["block"] == ["block_size"]
    path.write_text(SCALE + "typedef P<P<P<int> > > deep; int f(int a) { return a << 2 < 3; }")
    assert read_source(path).text == path.read_text()


def test_an_enumeration_without_a_name_sizes_a_block() -> None:
    made = drafted(
        "enum { kCrew = 192 };\n"
        + SCALE.replace("blockDim.x", "kCrew")
        + "void f(float* y, float* x, int n)\n"
        "{ scale<<<(n + kCrew - 1) / kCrew, kCrew>>>(y, x, n); }"
    )
    assert launch_of(made)["block"] == ["crew"]
    assert "kCrew = @{ crew }@" in made.template


def test_an_array_of_constants_is_no_constant() -> None:
    made = drafted(
        "struct Sizes {\n  static constexpr unsigned long all[] = {sizeof(float), 8};\n"
        "  static constexpr const char *name = title<T>();\n};\n"
        + SCALE
        + "void f(float* y, float* x, int n) { scale<<<(n + 63) / 64, 64>>>(y, x, n); }"
    )
    assert launch_of(made)["block"] == ["block_size"]


def test_warps_are_followed_by_a_block_that_is_a_number() -> None:
    text = (
        "template <int Warps> __global__ void k(float* y, const float* x, int n) {\n"
        "  __shared__ float part[Warps];\n"
        "  part[threadIdx.x / 32] = x[blockIdx.x * n + threadIdx.x];\n  __syncthreads();\n"
        "  for (int w = 0; w < Warps; ++w) y[blockIdx.x] += part[w];\n}\n"
        "void f(float* y, float* x, int n) { k<4><<<n, BLOCK>>>(y, x, n); }\n"
    )
    for block in ("128", "4 * 32"):
        made = drafted(text.replace("BLOCK", block))
        assert launch_of(made)["block"] == ["warps * 32"]


def test_alternatives_of_an_if_are_those_of_a_plain_build(
    tmp_path: Path, compiler: NvrtcPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = Path("k.cu")
    head = "#ifdef BUILD_CREW\n#define CREW BUILD_CREW\n#else\n#define CREW 96\n#endif\n"
    host = "void f(float* y, float* x, int n) { scale<<<(n + CREW - 1) / CREW, CREW>>>(y, x, n); }"
    path.write_text(head + SCALE.replace("blockDim.x", "CREW") + host)
    for defined, default in ((), "96"), (("BUILD_CREW=64",), "64"):
        asked = Asked(defined=defined)
        made = draft_source(path, Path(), asked, compiler=lambda: compiler, force=True)
        assert made.space is not None
        text = made.space.read_text()
        assert f"block: [{default}]" in text
        assert re.search(rf"default: {{(build_)?crew: {default}", text)
