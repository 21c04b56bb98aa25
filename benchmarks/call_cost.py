"""What a call of an exported operator costs on the host, beside a bare launch.

    python benchmarks/call_cost.py [--calls N] [--out FILE]        (needs an NVIDIA GPU and PyTorch)

The package is that of the recorded winners of silu_and_mul and rmsnorm (`tune export --format
torch`). Microseconds of the host for one call, the least of several runs, while the GPU has
nothing else to do: the function, the same through `torch.ops`, the driver's launch alone, and an
addition by PyTorch.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any

from environment import write_result

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "benchmarks/results/h200/call_cost.json"
KERNELS = ("rmsnorm", "silu_and_mul")
PACKAGE = "tuned_call_cost"
REPEATS = 9


def tune(*words: str) -> None:
    """Run `tune`."""
    command = [sys.executable, "-m", "tuner", *words]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=ROOT)


def exported(folder: Path) -> Path:
    """Export the recorded winners as one package."""
    sessions = [str(folder / name) for name in KERNELS]
    for name, session in zip(KERNELS, sessions, strict=True):
        kernel = f"kernels/sglang/{name}.cu"
        tune(kernel, "--device", "recorded", "--quiet", "--session", session)
    tune("export", *sessions, "--format", "torch", "--package", PACKAGE, "--to", str(folder / "p"))
    return folder / "p"


def cost_us(call: Callable[[], Any], calls: int) -> float:
    """Time calls on the host; the queue of the GPU never fills, for it is emptied in between."""
    import torch

    least = float("inf")
    for _ in range(REPEATS):
        torch.cuda.synchronize()
        least = min(least, timeit.timeit(call, number=calls))
    return round(least / calls * 1e6, 3)


def costs(package: Any, calls: int) -> dict[str, dict[str, float]]:
    """Cost every operator at its first tuned shape."""
    import torch

    def empty(*shape: int) -> Any:
        return torch.zeros(*shape, dtype=torch.bfloat16, device="cuda")

    rows = 16
    wide = package.OPERATORS["silu_and_mul"].table.points[0][0][1]
    hidden = package.OPERATORS["rmsnorm"].table.points[0][0][1]
    given = {
        "silu_and_mul": (empty(rows, wide), empty(rows, 2 * wide)),
        "rmsnorm": (empty(rows, hidden), empty(rows, hidden), empty(hidden)),
    }
    found = {}
    for name, arrays in given.items():
        function = getattr(package, name)
        operator = getattr(getattr(torch.ops, PACKAGE), name)
        with torch.no_grad():
            function(*arrays)
            found[name] = {
                "function": cost_us(lambda f=function, a=arrays: f(*a), calls),
                "torch.ops": cost_us(lambda f=operator, a=arrays: f(*a), calls),
                "bare launch": cost_us(_bare(package.OPERATORS[name]), calls),
            }
    x = empty(rows, hidden)
    out = torch.empty_like(x)
    found["torch.add"] = {"function": cost_us(lambda: torch.add(x, x, out=out), calls)}
    return found


def _bare(operator: Any) -> Callable[[], Any]:
    (plan,) = operator.plans.values()
    (_, config, kernel, parameters), *_ = plan.launches
    launch = operator._driver.launch
    return lambda: launch(config, kernel, parameters, None)


def main() -> None:
    import torch

    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--calls", type=int, default=500)
    parser.add_argument("--out", type=Path, default=OUT)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sys.path.insert(0, str(exported(Path(folder))))
        package = __import__(PACKAGE)
        found = costs(package, asked.calls)
    environment = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    write_result(asked.out, {"calls": asked.calls, "us": found, "environment": environment})
    for name, row in found.items():
        print(name, row)


if __name__ == "__main__":
    main()
