"""Checkpoints of other repositories: made afresh with random numbers, and compared with a forward pass of their own,
written from what their layers are said to do."""

import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

import flashcaps
from flashcaps.deploy.convert import CIFAR, LAYOUTS
from tests.conftest import Say
from tests.training.test_checkpoint import Evil

State = dict[str, Tensor]
GLASSROOM, GUO, GRAM, APPLE = LAYOUTS


def batch_norm(name: str, n: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.{key}": (n,) for key in ("weight", "bias", "running_mean", "running_var")} | {
        f"{name}.num_batches_tracked": ()}  # fmt: skip


def affine(name: str, out: int, *inputs: int, bias: bool = True) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (out, *inputs)} | ({f"{name}.bias": (out,)} if bias else {})


def heinsen_routing(k: int, children: int, parents: int, d: int, h: int, rows: int) -> dict[str, tuple[int, ...]]:
    shapes = {"W": (children, parents, d, h), "B": (children, parents, rows, h)}
    shapes |= {"beta_use": (children, parents), "beta_ign": (children, parents), "CONST_one": ()}
    return {f"routings.{k}.{name}": shape for name, shape in shapes.items()}


def glassroom_norb() -> dict[str, tuple[int, ...]]:
    shapes = {}
    for k, n in enumerate((4, 64, 64, 64, 64, 64)):
        shapes |= batch_norm(f"convolve.{3 * k}", n) | affine(f"convolve.{3 * k + 1}", 64, n, 3, 3)
    for name, out in (("compute_a", 64), ("compute_mu", 1024)):
        shapes |= batch_norm(f"{name}.0", 64) | affine(f"{name}.1", out, 64, 1, 1)
    return shapes | heinsen_routing(0, 1, 64, 4, 4, 4) | heinsen_routing(1, 64, 5, 4, 4, 4)


def glassroom_sst(classes: int) -> dict[str, tuple[int, ...]]:
    shapes = {"depth_emb": (5, 24)} | affine("detect_parts.0", 64, 24) | affine("detect_parts.2", 64)
    return shapes | heinsen_routing(0, 1, 64, 64, 2, 1) | heinsen_routing(1, 64, classes, 2, 2, 1)


def decoder(pixels: int) -> dict[str, tuple[int, ...]]:
    return affine("decoder.0", 512, 160) | affine("decoder.2", 1024, 512) | affine("decoder.4", pixels, 1024)


def guo() -> dict[str, tuple[int, ...]]:
    shapes = affine("conv1", 256, 1, 9, 9) | affine("primarycaps.conv2d", 256, 256, 9, 9)
    return shapes | {"digitcaps.weight": (10, 1152, 16, 8)} | decoder(784)


def gram(channels: int, children: int, pixels: int) -> dict[str, tuple[int, ...]]:
    shapes = affine("conv1", 256, channels, 9, 9)
    for k in range(8):
        shapes |= affine(f"primary_capsules.capsules.{k}", 32, 256, 9, 9)
    return shapes | {"digit_capsules.route_weights": (10, children, 8, 16)} | decoder(pixels)


def apple(dim: int, sizes: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """sizes: capsules of the dense layers."""
    p, stem = math.isqrt(dim), "pre_caps.pre_caps"
    shapes = affine(f"{stem}.0", 64, 3, 3, 3, bias=False) | batch_norm(f"{stem}.1", 64)
    for stage, blocks, width in ((3, 3, 64), (4, 4, 128)):
        for k in range(blocks):
            n, at = 64 if k == 0 else width, f"{stem}.{stage}.{k}"
            shapes |= affine(f"{at}.conv1", width, n, 3, 3, bias=False) | batch_norm(f"{at}.bn1", width)
            shapes |= affine(f"{at}.conv2", width, width, 3, 3, bias=False) | batch_norm(f"{at}.bn2", width)
            if n != width:
                shapes |= affine(f"{at}.shortcut.0", width, n, 1, 1, bias=False) | batch_norm(f"{at}.shortcut.1", width)
    shapes |= affine("pc_layer", 32 * dim, 128, 1, 1, bias=False) | affine("nonlinear_act", dim)
    layers = [(3, 3, 32, p, p, 32)] * 2 + [(n, p, p, m) for n, m in zip((800, *sizes), sizes, strict=False)]
    for k, shape in enumerate(layers):
        shapes |= {f"capsule_layers.{k}.w": shape} | affine(f"capsule_layers.{k}.nonlinear_act", dim)
    return shapes | affine("final_fc", 1, dim)


def drawn(shapes: dict[str, tuple[int, ...]]) -> State:
    """Random weights in fp32, small where many are summed; variances and scales of norms around 1."""
    state: State = {}
    for name, shape in shapes.items():
        near_1 = name.endswith("running_var") or (name.endswith("weight") and len(shape) == 1)
        fan = math.prod(shape[1:]) if name.endswith("weight") and len(shape) in (2, 4) else 4
        x = torch.randn(shape)
        state[name] = torch.zeros(shape, dtype=torch.int64) if "tracked" in name else (
            1 + 0.2 * x.tanh() if near_1 else x * (fan if name != "digitcaps.weight" else 64) ** -0.5)  # fmt: skip
    return state


def linear(s: State, name: str, x: Tensor) -> Tensor:
    return F.linear(x, s[f"{name}.weight"], s[f"{name}.bias"])


def conv(s: State, name: str, x: Tensor, stride: int = 1, padding: int = 0) -> Tensor:
    return F.conv2d(x, s[f"{name}.weight"], s.get(f"{name}.bias"), stride, padding)


def norm(s: State, name: str, x: Tensor) -> Tensor:
    """BatchNorm with its statistics, or LayerNorm where there are none."""
    scale, shift = s[f"{name}.weight"], s[f"{name}.bias"]
    if f"{name}.running_mean" not in s:
        return F.layer_norm(x, scale.shape, scale, shift)
    return F.batch_norm(x, s[f"{name}.running_mean"], s[f"{name}.running_var"], scale, shift)


def squashed(x: Tensor) -> Tensor:
    n = x.square().sum(-1, keepdim=True).sqrt()
    return n / (1 + n * n) * x


def routed_by_heinsen(s: State, k: int, score: Tensor, mu: Tensor) -> tuple[Tensor, Tensor]:
    """mu (B, I, rows, d) with logits score (B, I) -> scores (B, J) and means (B, J, rows, h), three iterations."""
    w, b, use, ignore = (s[f"routings.{k}.{name}"] for name in ("W", "B", "beta_use", "beta_ign"))
    n = mu.shape[1]
    votes = torch.einsum("bicd,ijdh->bijch", mu, w.expand(n, *w.shape[1:])) + b
    present, r = score.sigmoid()[..., None], torch.full(votes.shape[:3], 1 / w.shape[1], dtype=mu.dtype)
    for _ in range(3):
        used = present * r
        a = (use * used - ignore * (present - used)).sum(1)
        share = (used / (used.sum(1, keepdim=True) + 1e-5))[..., None, None]
        mean = (share * votes).sum(1)
        var = (share * (votes - mean[:, None]).square()).sum(1) + 1e-5
        log_p = -((votes - mean[:, None]).square() / (2 * var[:, None]) + var.sqrt().log()[:, None]).sum((-2, -1))
        r = (F.logsigmoid(a)[:, None] + log_p).softmax(-1)  # that of the next iteration
    return a, mean


def scores_norb(s: State, x: Tensor) -> Tensor:
    b, _, h, w = x.shape
    rows = torch.linspace(-1, 1, h, dtype=x.dtype)[:, None].expand(b, 1, h, w)
    columns = torch.linspace(-1, 1, w, dtype=x.dtype).expand(b, 1, h, w)
    x = torch.cat([x, rows, columns], 1)  # y before x
    for k in range(6):
        x = F.silu(conv(s, f"convolve.{3 * k + 1}", norm(s, f"convolve.{3 * k}", x), 1 + k % 2))
    a = conv(s, "compute_a.1", norm(s, "compute_a.0", x)).flatten(1)
    mu = conv(s, "compute_mu.1", norm(s, "compute_mu.0", x)).unflatten(1, (64, 4, 4)).permute(0, 1, 4, 5, 2, 3)
    return routed_by_heinsen(s, 1, *routed_by_heinsen(s, 0, a, mu.flatten(1, 3)))[0]


def scores_sst(s: State, x: Tensor) -> Tensor:
    u = norm(s, "detect_parts.2", F.silu(linear(s, "detect_parts.0", x + s["depth_emb"]))).flatten(1, 2)
    sure = torch.full(u.shape[:2], math.inf, dtype=x.dtype)
    return routed_by_heinsen(s, 1, *routed_by_heinsen(s, 0, sure, u[:, :, None]))[0]


def routed_dynamically(votes: Tensor, over: int, detach: bool) -> Tensor:
    """votes (B, I, J, D), three iterations, softmax over the parents (2) or the children (1) -> poses."""
    b = torch.zeros(votes.shape[:3], dtype=votes.dtype)
    for t in range(3):
        u = votes.detach() if detach and t < 2 else votes
        v = squashed((b.softmax(over)[..., None] * u).sum(1))
        b = b + (u * v[:, None]).sum(-1)
    return v


def scores_guo(s: State, x: Tensor) -> Tensor:
    """Eight numbers in a row of the flattened map are a capsule; no gradient but through the last iteration."""
    features = conv(s, "primarycaps.conv2d", conv(s, "conv1", x).relu(), 2)
    u = squashed(features.reshape(len(x), -1, 8))
    return routed_dynamically(torch.einsum("bid,jihd->bijh", u, s["digitcaps.weight"]), 2, True).norm(dim=-1)


def scores_gram(s: State, x: Tensor) -> Tensor:
    """A convolution for each of eight dimensions; children of a parent compete; lengths go through a softmax after."""
    x = conv(s, "conv1", 255 * x if x.shape[1] == 3 else x).relu()
    u = squashed(torch.stack([conv(s, f"primary_capsules.capsules.{k}", x, 2).flatten(1) for k in range(8)], -1))
    votes = torch.einsum("bid,jidh->bijh", u, s["digit_capsules.route_weights"])
    return routed_dynamically(votes, 1, False).norm(dim=-1)


def attend(s: State, k: int, u: Tensor, pose: Tensor | None) -> Tensor:
    """One step of layer k: (B, types, H, W, D), or (B, I, D), and the parents so far -> the parents."""
    w, dim, p = s[f"capsule_layers.{k}.w"], u.shape[-1], math.isqrt(u.shape[-1])
    if w.ndim == 6:
        stride = 2 if k == 0 else 1
        size = (u.shape[2] - 3) // stride + 1
        starts = [(stride * y, stride * x) for y in range(size) for x in range(size)]
        cut = [u[:, :, y : y + 3, x : x + 3] for y, x in starts]
        windows = torch.stack(cut, -1).reshape(len(u), 32, 3, 3, size, size, p, p)  # from (..., D, places): scrambled
        votes = torch.einsum("bnklhwax,klnxdm->bhwnklmad", windows, w).flatten(3, 5).flatten(-2)  # (B, H', W', I, J, D)
        before = None if pose is None else pose.permute(0, 2, 3, 1, 4)
    else:
        flat = u.flatten(1, -2).unflatten(-1, (p, p))
        votes, before = torch.einsum("bnax,nxdm->bnmad", flat, w).flatten(-2), pose
    logits = torch.zeros_like(votes[..., 0]) if before is None else (votes * before.unsqueeze(-3)).sum(-1) * dim**-0.5
    new = norm(s, f"capsule_layers.{k}.nonlinear_act", (logits.softmax(-1)[..., None] * votes).sum(-3))
    return new.permute(0, 3, 1, 2, 4) if w.ndim == 6 else new


def scores_apple(s: State, x: Tensor, concurrent: bool) -> Tensor:
    mean, std = (torch.tensor(values).view(3, 1, 1).to(x.dtype) for values in CIFAR)
    stem = "pre_caps.pre_caps"
    x = norm(s, f"{stem}.1", conv(s, f"{stem}.0", (x - mean) / std, padding=1)).relu()
    for stage, blocks in ((3, 3), (4, 4)):
        for k in range(blocks):
            at, stride = f"{stem}.{stage}.{k}", 2 if (stage, k) == (4, 0) else 1
            y = norm(s, f"{at}.bn1", conv(s, f"{at}.conv1", x, stride, 1)).relu()
            y = norm(s, f"{at}.bn2", conv(s, f"{at}.conv2", y, padding=1))
            if stride == 2:
                x = norm(s, f"{at}.shortcut.1", conv(s, f"{at}.shortcut.0", x, 2))
            x = (x + y).relu()
    u = conv(s, "pc_layer", x).unflatten(1, (32, -1)).permute(0, 1, 3, 4, 2)
    poses = [norm(s, "nonlinear_act", u)]
    layers = range(sum(key.endswith(".w") for key in s))
    for k in layers:
        first = attend(s, k, poses[k], None)
        poses.append(first if concurrent else attend(s, k, poses[k], first))
    if concurrent:
        poses = [poses[0], *(attend(s, k, poses[k], poses[k + 1]) for k in layers)]
    return linear(s, "final_fc", poses[-1])[..., 0]


Shapes = dict[str, tuple[int, ...]]
CASES: dict[str, tuple[str, Shapes, Callable[[State, Tensor], Tensor], tuple[int, ...], dict[str, Any]]] = {
    "smallNORB": (GLASSROOM, glassroom_norb(), scores_norb, (1, 2, 48, 48), {}),
    "SST-2": (GLASSROOM, glassroom_sst(2), scores_sst, (2, 3, 5, 24), {}),
    "SST-5": (GLASSROOM, glassroom_sst(5), scores_sst, (2, 3, 5, 24), {}),
    "guo": (GUO, guo(), scores_guo, (2, 1, 28, 28), {}),
    "gram": (GRAM, gram(1, 1152, 784), scores_gram, (2, 1, 28, 28), {}),
    "gram, house numbers": (GRAM, gram(3, 2048, 3072), scores_gram, (2, 3, 32, 32), {}),
    "apple": (APPLE, apple(16, (10,)), lambda s, x: scores_apple(s, x, True), (1, 3, 32, 32), {}),
    "apple, CIFAR-100": (APPLE, apple(36, (20, 100)), lambda s, x: scores_apple(s, x, False), (1, 3, 32, 32),
                         {"iterations": 2, "concurrent": False}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_converted_model_answers_as_its_own_code_does(case: str, tmp_path: Path) -> None:
    """Class scores and their gradient by the input, in fp64; the numbers differ by 1e-8 of theirs at a squash."""
    name, shapes, forward, inputs, overrides = CASES[case]
    state = drawn(shapes)
    torch.save(state, tmp_path / "theirs.pt")
    model = flashcaps.convert(tmp_path / "theirs.pt", name, **overrides).double()
    x = torch.rand(inputs, dtype=torch.float64, requires_grad=True)
    expected = forward({key: t.double() if t.is_floating_point() else t for key, t in state.items()}, x)
    scores = model(x).scores
    assert scores.shape == expected.shape
    assert expected.std() > 1e-4  # classes differ
    torch.testing.assert_close(scores, expected, rtol=1e-7, atol=1e-9)
    seen = torch.randn_like(expected)
    ours, theirs = (torch.autograd.grad((y * seen).sum(), x)[0] for y in (scores, expected))
    assert theirs.abs().max() > 0
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6 * theirs.abs().max().item())


def test_the_command_writes_what_load_and_predict_take(tmp_path: Path, say: Say) -> None:
    """Out of the wrapper of a training script and DataParallel's prefix, to a file with the recipe of its data."""
    state = drawn(guo())
    torch.save({"net": {f"module.{key}": x for key, x in state.items()}, "acc": 99.1, "epoch": 3}, tmp_path / "a.pkl")
    assert "8,215,568 weights" in say("convert", tmp_path / "a.pkl", "iterations=2", "--from", "XifengGuo").out
    model: Any = flashcaps.load(tmp_path / "a.safetensors")
    assert model.config["converted_from"] == GUO
    assert model.config["recipe"]["data"]["name"] == "mnist"
    assert model.capsules.layers[0].routing.iterations == 2
    torch.save(state, tmp_path / "b.pkl")
    plain = flashcaps.convert(tmp_path / "b.pkl", GUO, iterations=2)
    x = torch.rand(2, 1, 28, 28)
    assert torch.equal(model(x).scores, plain(x).scores)
    drawing = model(x, torch.tensor([3, 5])).reconstruction
    masked = torch.zeros(2, 10, 16).scatter(1, torch.tensor([3, 5])[:, None, None].expand(2, 1, 16), 1)
    y = (masked * model(x).routed.pose).flatten(1)
    for k in (0, 2, 4):
        y = linear(state, f"decoder.{k}", y).relu() if k < 4 else linear(state, "decoder.4", y).sigmoid()
    torch.testing.assert_close(drawing.flatten(1), y)
    (tmp_path / "digit").mkdir()
    Image.new("L", (28, 28), 90).save(tmp_path / "digit" / "a.png")
    assert say("predict", tmp_path / "a.safetensors", tmp_path / "digit").code == 0


def test_what_does_not_fit_is_named(tmp_path: Path) -> None:
    state, path = drawn(glassroom_sst(2)), tmp_path / "theirs.pt"  # sentiment's, the smallest

    def says(pattern: str, changed: State | Any, name: str = "glassroom", **overrides: Any) -> None:
        torch.save(changed, path)
        with pytest.raises(ValueError, match=pattern) as caught:
            flashcaps.convert(path, name, **overrides)
        assert "\n" not in str(caught.value)

    says(r"routings\.0\.W: expected a shape that becomes \(64, 64, 1, 2\).*got \(1, 64, 32, 2\)",
         state | {"routings.0.W": torch.ones(1, 64, 32, 2)})  # fmt: skip
    says(r"routings\.0\.B: .*got \(2,\)", state | {"routings.0.B": torch.ones(2)})
    says("nothing like routings.2.W", state | {"routings.2.W": torch.ones(1)})
    says("what becomes linear.bias", {key: x for key, x in state.items() if key != "detect_parts.0.bias"})
    says("expected conv1.weight, which checkpoints of gram-ai/capsule-networks have",
         {"digit_capsules.route_weights": torch.ones(2)}, "gram-ai")  # fmt: skip
    says("capsule_layers.0.w", state, "apple")
    says("expected one of glassroom/.*did you mean.*xifengguo", state, "xifengguoo")
    says("classes: expected what checkpoints leave open", state, classes=3)
    says("expected tensors by name", {"net": {"acc": 1.0}})


def test_a_pickle_is_refused_and_does_not_run(tmp_path: Path, say: Say) -> None:
    evil = Evil(tmp_path / "evil")
    torch.save({"model": evil}, tmp_path / "a.pt")
    (tmp_path / "b.pt").write_bytes(pickle.dumps(evil))
    (tmp_path / "c.pt").write_bytes(b"no checkpoint")
    (tmp_path / "d.pt").write_bytes(b"")
    for file in "abcd":
        with pytest.raises(ValueError, match="refused: expected tensors alone"):
            flashcaps.convert(tmp_path / f"{file}.pt", GUO)
    code, _, said = say("convert", tmp_path / "a.pt", "--from", "apple")
    assert (code, said.count("\n")) == (1, 1)
    assert not (tmp_path / "evil").exists()
