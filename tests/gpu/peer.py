"""What PyTorch makes of the networks in tests/gpu/jobs on the same GPU: peer.py mlp|wide|conv|gemm

Prints one JSON object: steps per second of the eager loop and of the compiled one (null where
torch.compile does not work), or for gemm the rate of an 8192 x 8192 x 8192 product. The data lie on
the GPU from the start, which is in PyTorch's favour. float32 is without TF32, as ours is.
"""
import json
import statistics
import sys
import time

import torch

nn = torch.nn
torch.backends.cuda.matmul.allow_tf32 = False
torch.backends.cudnn.allow_tf32 = False
GPU = "cuda"


def network(kind):
    if kind == "mlp":
        return nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10)), (64, 784), 400
    if kind == "wide":
        layers = [m for _ in range(4) for m in (nn.Linear(8192, 8192), nn.ReLU())]
        return nn.Sequential(*layers, nn.Linear(8192, 10)), (8192, 8192), 8
    conv = lambda i, o: (nn.Conv2d(i, o, 3, padding=1), nn.ReLU())
    return nn.Sequential(*conv(3, 32), *conv(32, 32), nn.MaxPool2d(2), *conv(32, 64), *conv(64, 64), nn.MaxPool2d(2),
                         nn.Flatten(), nn.Linear(4096, 128), nn.ReLU(), nn.Linear(128, 10)), (256, 3, 32, 32), 40


def rate(step, each):
    """Median over 8 stretches of `each` calls, after a warm-up of two."""
    speeds = []
    for stretch in range(10):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(each):
            step()
        torch.cuda.synchronize()
        speeds.append(each / (time.perf_counter() - began))
    return statistics.median(speeds[2:])


def trainer(kind, compiled):
    torch.manual_seed(1)
    model, shape, each = network(kind)
    model = model.to(GPU)
    optimizer = torch.optim.Adam(model.parameters(), fused=compiled)
    loss_of = nn.CrossEntropyLoss()
    x = torch.rand(*shape, device=GPU)
    y = torch.randint(0, 10, (shape[0],), device=GPU)
    half = torch.autocast(GPU, torch.bfloat16, enabled=kind == "wide")

    def forward():
        with half:
            return loss_of(model(x), y)

    if compiled:
        forward = torch.compile(forward)

    def step():
        optimizer.zero_grad()
        forward().backward()
        optimizer.step()

    return rate(step, each)


def gemm():
    a = torch.randn(8192, 8192, device=GPU, dtype=torch.bfloat16)
    b = torch.randn(8192, 8192, device=GPU, dtype=torch.bfloat16)
    return {"tflops": 2 * 8192**3 * rate(lambda: a @ b, 10) / 1e12}


def both(kind):
    out = {"eager": trainer(kind, False), "compiled": None}
    try:
        out["compiled"] = trainer(kind, True)
    except Exception as e:  # said, not hidden: the table shows a dash and this line is in the folder
        out["why_not_compiled"] = str(e)[:500]
    return out


if __name__ == "__main__":
    kind = sys.argv[1]
    print(json.dumps({"torch": torch.__version__, **(gemm() if kind == "gemm" else both(kind))}))
