from shipped_kernels import KernelChecks, Sample, ShippedKernel
KERNEL = ShippedKernel("decode_attention")
A = {"B": 3, "L": 70, "S": 100, "H": 2, "G": 4, "D": 128, "P": 1, "W": 75}
AX = [
    A, {**A, "B": 1, "L": 1, "S": 1}, {**A, "B": 2, "L": 301, "S": 302, "W": 301}, {**A, "B": 40, "L": 40, "S": 600, "H": 1, "G": 8},
    {**A, "D": 64, "P": 16, "W": 5, "G": 2, "H": 4}, {**A, "D": 64, "P": 64, "W": 2, "G": 16},
    {**A, "D": 256, "G": 1}, {**A, "D": 256, "P": 16, "W": 6, "G": 12}, {**A, "P": 64, "W": 2, "G": 5, "H": 8}, {**A, "G": 16, "P": 16, "W": 5},
]
class TestSpread(KernelChecks):
    kernel = KERNEL
    operators = ({}, {"LENGTHS": "zipf"}, {"LENGTHS": "one_long"})
    baselines = tuple(AX)
    samples = tuple(Sample(a, 3, {"schedule": s, "min_blocks": 1, **({"combine": c} if c else {})}) for a in AX for s, c in (("chunks", "last"), ("chunks", "cluster"), ("chunks", "launch"), ("shares", ""), ("teams", "")) if not (a["B"]==1 and a["S"]==1 and (c in ("cluster", "launch") )) and not (s == "teams" and a["H"]==1))
    workload = A
    launches = ()
    test_a_near_miss_is_caught = None
