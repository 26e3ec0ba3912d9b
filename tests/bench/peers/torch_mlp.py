"""The peer of the training benchmark in PyTorch, Adam and cross-entropy, one process or DDP over gloo.

    torch_mlp.py BATCH RANKS SECONDS [mlp|deep|conv]      prints samples per second of the whole job

mlp: 784-128-10. deep: 256-256-256-256-256-10. conv: 16x16x1, two convolutions of 16 and 32 channels with poolings.
"""
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def build(kind):
    nn = torch.nn
    if kind == "deep":
        layers = [m for _ in range(4) for m in (nn.Linear(256, 256), nn.ReLU())]
        return nn.Sequential(*layers, nn.Linear(256, 10)), (256,)
    if kind == "conv":
        return nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
                             nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
                             nn.Flatten(), nn.Linear(512, 10)), (1, 16, 16)
    return nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10)), (784,)


def train(rank, ranks, batch, seconds, kind, out):
    torch.set_num_threads(1)
    if ranks > 1:
        os.sched_setaffinity(0, {rank % os.cpu_count()})
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=out["port"])
        dist.init_process_group("gloo", rank=rank, world_size=ranks)
    torch.manual_seed(1)
    model, shape = build(kind)
    if ranks > 1:
        model = torch.nn.parallel.DistributedDataParallel(model)
    opt = torch.optim.Adam(model.parameters())
    loss_of = torch.nn.CrossEntropyLoss()
    x = torch.rand(8000, *shape)
    y = torch.randint(0, 10, (8000,))
    mine = batch // ranks
    samples = 0
    begin = None
    step = 0
    while True:
        at = (step * batch + rank * mine) % (8000 - mine)
        opt.zero_grad()
        loss = loss_of(model(x[at:at + mine]), y[at:at + mine])
        loss.backward()
        opt.step()
        step += 1
        if step == 50:
            begin = time.perf_counter()
            samples = 0
        samples += batch
        if step % 50 == 0:
            done = torch.tensor([1.0 if time.perf_counter() - begin > seconds else 0.0])
            if ranks > 1:
                dist.all_reduce(done)
            if done.item() > 0:
                break
    if rank == 0:
        print("%.0f" % (samples / (time.perf_counter() - begin)))
    if ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    batch, ranks, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    kind = sys.argv[4] if len(sys.argv) > 4 else "mlp"
    shared = {"port": str(20000 + os.getpid() % 9000)}
    if ranks == 1:
        train(0, 1, batch, seconds, kind, shared)
    else:
        mp.spawn(train, args=(ranks, batch, seconds, kind, shared), nprocs=ranks)
