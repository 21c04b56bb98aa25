def reference(xp, inputs, axes):
    total = inputs["total"] + inputs["x"]
    return {"total": total, "code": inputs["x"]}


def adding(tensors, axes):
    import torch

    tensors["total"].add_(tensors["x"].float())
    # To fp8 it does not saturate by itself.
    values = tensors["x"].float().clamp(-448.0, 448.0)
    return {"code": values.to(torch.float8_e4m3fn)}


peers = {"adding": adding}
