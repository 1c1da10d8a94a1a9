"""Whole steps on one GPU: forward, loss and backward of a model, captured, and the kernels they consist of.

    python -m benchmarks.steps_gpu [--only capsnet ...] [--top 20] [--small]

--small times what surrounds the routing kernels: LayerNorm and squash of poses, patches, BatchNorm with its ReLU, each
beside torch's own.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from flashcaps import create_model
from flashcaps.functional import squash
from flashcaps.kernels import votes
from flashcaps.kernels.common.batch_norm import normalise
from flashcaps.kernels.common.norm import layer_norm_poses, squash_poses
from flashcaps.kernels.common.patches import patches
from flashcaps.kernels.common.stem import convolve_image
from flashcaps.nn.losses import cross_entropy_loss, margin_loss, reconstruction_loss, spread_loss


class Model(NamedTuple):
    name: str
    overrides: dict[str, Any]
    loss: str
    batch: int = 128
    bf16: bool = True


MODELS = {
    "capsnet": Model("capsnet_mnist", {"original": True}, "margin"),
    "attention": Model("attention_resnet_cifar10", {}, "cross"),
    "attention3": Model("attention_resnet_cifar10", {"iterations": 3}, "cross"),
    "em": Model("em_cifar10", {}, "spread", bf16=False),
}


def step_of(model: Model) -> Callable[[], Tensor]:
    """Forward, loss, backward on one random batch, channels last."""
    torch.manual_seed(0)
    network = create_model(model.name, backend="triton", **model.overrides).cuda()
    images = torch.rand(model.batch, *network.image, device="cuda").contiguous(memory_format=torch.channels_last)
    labels = torch.randint(network.classes, (model.batch,), device="cuda")

    def step() -> Tensor:
        network.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16, enabled=model.bf16, cache_enabled=False):
            output = network(images, labels if network.decoder is not None else None)
        scores = output.scores.float()
        if model.loss == "margin":
            loss = margin_loss(scores, labels) + 0.01 * reconstruction_loss(output.reconstruction.float(), images)
        elif model.loss == "spread":
            loss = spread_loss(scores, labels, 0.5)
        else:
            loss = cross_entropy_loss(scores, labels)
        loss.backward()
        return loss.detach()

    return step


def captured(step: Callable[[], Any], warm: int = 3) -> torch.cuda.CUDAGraph:
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        for _ in range(warm):
            step()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        step()
    return graph


def time_of(graph: torch.cuda.CUDAGraph, replays: int = 30) -> float:
    """Median milliseconds of a replay."""
    times = []
    for _ in range(replays):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times[5:])


def kernels_of(graph: torch.cuda.CUDAGraph) -> list[tuple[float, int, str]]:
    """Milliseconds, launches and name of each kernel, slowest first."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
        graph.replay()
        torch.cuda.synchronize()
    rows = [(x.self_device_time_total / 1e3, x.count, x.key) for x in found.key_averages()]
    return sorted((row for row in rows if row[0] > 0), reverse=True)


def measure(name: str, top: int) -> None:
    torch.cuda.reset_peak_memory_stats()
    graph = captured(step_of(MODELS[name]))
    rows = kernels_of(graph)
    launches, peak = sum(n for _, n, _ in rows), torch.cuda.max_memory_allocated() / 2**20
    print(f"\n{name}: {time_of(graph):.3f} ms, {launches} launches, {peak:.0f} MiB", flush=True)
    for ms, n, key in rows[:top]:
        print(f"  {ms:.4f} ms x{n:<3} {key[:150]}")


def compare(title: str, ours: Callable[..., Tensor], theirs: Callable[..., Tensor], *leaves: Tensor) -> None:
    """Microseconds of forward + backward by both, and how far apart results and gradients are."""
    with torch.no_grad():
        g = torch.randn_like(theirs(*leaves))

    def step(function: Callable[..., Tensor]) -> list[Tensor]:
        y = function(*leaves)
        return [y.detach(), *torch.autograd.grad(y, leaves, g.to(y.dtype))]

    times = [1e3 * time_of(captured(lambda f=f: step(f))) for f in (ours, theirs)]
    results = [[x.double() for x in step(f)] for f in (ours, theirs)]
    errors = [float((a - b).norm() / b.norm()) for a, b in zip(*results, strict=True)]
    print(f"  {title:<44}{times[0]:>9.1f} us, torch {times[1]:>9.1f} us, off by {max(errors):.1e}", flush=True)


def batch_norms() -> None:
    """The shapes of the attention ResNet at batch 128."""
    for shape in ((128, 64, 32, 32), (128, 128, 16, 16)):
        norm = torch.nn.BatchNorm2d(shape[1], device="cuda")
        x, r = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        x, r = (y.contiguous(memory_format=torch.channels_last).requires_grad_() for y in (x, r))
        size, w, b = "x".join(map(str, shape)), norm.weight, norm.bias

        def ours(x: Tensor, w: Tensor, b: Tensor, r: Tensor | None = None, norm: Any = norm) -> Tensor:
            return normalise(norm, x, r)

        def theirs(x: Tensor, w: Tensor, b: Tensor, r: Tensor | None = None, norm: Any = norm) -> Tensor:
            y = norm(x)
            return (y if r is None else y + r).relu_()

        compare(f"BatchNorm, ReLU {size}, bf16", ours, theirs, x, w, b)
        compare(f"BatchNorm, sum, ReLU {size}, bf16", ours, theirs, x, w, b, r)


def small() -> None:
    """The shapes of attention ResNet and CapsNet at batch 128."""
    w, b = (torch.randn(16, device="cuda", requires_grad=True) for _ in range(2))
    features = torch.randn(128, 512, 16, 16, device="cuda").contiguous(memory_format=torch.channels_last)
    pose = features.view(128, 32, 16, 16, 16).permute(0, 1, 3, 4, 2).requires_grad_()
    half = pose.detach().bfloat16().requires_grad_()
    sums = torch.randn(128 * 49, 32, 16, device="cuda", requires_grad=True)

    def norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return F.layer_norm(x.float(), (16,), w, b)

    compare("LayerNorm 128x32x16x16x16", layer_norm_poses, norm, pose, w, b)
    with torch.autocast("cuda", torch.bfloat16):
        compare("LayerNorm 128x32x16x16x16, bf16", layer_norm_poses, norm, half, w, b)
    compare("LayerNorm 6272x32x16", layer_norm_poses, norm, sums, w, b)
    for last in (False, True):
        x = torch.randn(128, 256, 6, 6, device="cuda", dtype=torch.bfloat16)
        x = x.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)
        x = x.view(128, 32, 8, 6, 6).permute(0, 1, 3, 4, 2).requires_grad_()
        with torch.autocast("cuda", torch.bfloat16):
            title = f"squash 128x1152x8, bf16{', channels last' if last else ''}"
            compare(title, lambda x: squash_poses(x, 1 / 32, 0.1), lambda x: squash(x.float() / 32 + 0.1), x)
    gather, views = (lambda u: patches(u, 3, 2)), (lambda u: votes.patches(u, 3, 2))
    compare("patches 128x32x16x16x16, k 3, stride 2", gather, views, pose)
    u = torch.randn(128, 7, 7, 32, 16, device="cuda").permute(0, 3, 1, 2, 4).requires_grad_()
    compare("patches 128x32x7x7x16, k 3", lambda u: patches(u, 3, 1), lambda u: votes.patches(u, 3, 1), u)
    first = torch.randn(128, 512, 16, 16, device="cuda").view(128, 32, 16, 16, 16).permute(0, 1, 3, 4, 2)
    compare("the same, channels first", gather, views, first.requires_grad_())


    images = torch.rand(128, 1, 28, 28, device="cuda")
    kernel, shift = (torch.randn(*s, device="cuda", requires_grad=True) for s in ((256, 1, 9, 9), (256,)))
    with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
        compare(
            "first convolution 128x1x28x28 -> 256, k 9",
            lambda w, b: convolve_image(images, w, b, 1, 0), lambda w, b: F.conv2d(images, w, b), kernel, shift,
        )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--top", type=int, default=25, help="kernels to list per model")
    parser.add_argument("--small", action="store_true", help="time what surrounds the routing kernels too")
    args = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    if args.small:
        small()
        batch_norms()
    for name in args.only:
        measure(name, args.top)


if __name__ == "__main__":
    main()
