"""The float64 reference of per_token_quant_fp8, codes and scale of each row, and its peers."""

from functools import cache

LARGEST = 448.0  # of fp8 e4m3


def reference(xp, inputs, axes):
    """Compute q and scale in float64; `xp` is NumPy or CuPy. Rounding to fp8 is the judge's.

    One division a number, for halfway cases are many and an error decides them the wrong way.
    """
    x = inputs["x"]
    largest = xp.abs(x).max(axis=1, keepdims=True)
    return {
        "q": x * LARGEST / xp.where(largest > 0.0, largest, 1.0),
        "scale": largest[:, 0] / LARGEST,
    }


def quantized(torch, x):
    values = x.float()
    largest = values.abs().amax(dim=1, keepdim=True)
    factor = torch.where(largest > 0.0, LARGEST / largest, 0.0)
    return (values * factor).to(torch.float8_e4m3fn), largest.squeeze(1) / LARGEST


def pytorch(tensors, axes):
    """PyTorch's own operators, eager."""
    import torch

    q, scale = quantized(torch, tensors["x"])
    return {"q": q, "scale": scale}


@cache
def compiled():
    import torch

    return torch.compile(lambda x: quantized(torch, x), dynamic=False)


def torch_compile(tensors, axes):
    """The same, compiled."""
    q, scale = compiled()(tensors["x"])
    return {"q": q, "scale": scale}


def sgl_aot(tensors, axes):
    """SGLang's prebuilt operator, which has a scale a row as a column."""
    from tuner.device.reference import torch_operators

    operators = torch_operators("sgl_kernel", "sm90/common_ops.*")
    scale = tensors["scale"].unsqueeze(1)
    operators.sgl_per_token_quant_fp8.default(tensors["x"], tensors["q"], scale)


production = "sgl-aot"
peers = {"pytorch": pytorch, "torch.compile": torch_compile, "sgl-aot": sgl_aot}
