"""The float64 reference of a convolution without a border."""


def reference(xp, inputs, axes):
    image, weights = inputs["image"], inputs["filter"]
    height, width = axes["H"], axes["W"]
    output = xp.zeros((height, width))
    for i in range(axes["F"]):
        for j in range(axes["F"]):
            output += image[i : i + height, j : j + width] * weights[i, j]
    return {"output": output}
