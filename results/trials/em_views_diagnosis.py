"""Why em is not ahead of a CNN on new azimuths: small networks on reduced synthetic-NORB, on one CPU core.

    python results/trials/em_views_diagnosis.py FOLDER train NAME STEPS SEED   # one network of NETWORKS
    python results/trials/em_views_diagnosis.py FOLDER measure NAME STEPS SEED # what its layers know and use
    python results/trials/em_views_diagnosis.py FOLDER collect                 # -> em_views_diagnosis.json

Pairs are rendered at 48 x 48, scaled to 36 x 36, and networks see crops of 24 x 24. Training has every view of the five
training toys of a class from six azimuths, 300 to 40 degrees. Tests have all 18 azimuths, five elevations and three
lightings of the other five toys, and, for probes, of the training toys.
"""

import dataclasses
import json
import math
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from flashcaps.data.augment import brightness_contrast, center_crop, random_crop, resize
from flashcaps.data.split import Dataset, Split, to_float
from flashcaps.data.synthetic_norb import synthetic_norb
from flashcaps.models.base import Model
from flashcaps.models.baselines import Plain
from flashcaps.models.em import NORB_STEM, SCALE
from flashcaps.models.network import Capsules
from flashcaps.models.specs import ConvCaps, Dense, Primary, Route
from flashcaps.nn.backbones import Chain, Conv
from flashcaps.nn.trace import LayerTrace, children, trace_layers
from flashcaps.training.batches import held_images
from flashcaps.training.environment import versions
from flashcaps.training.results import commit
from flashcaps.training.routing_measure import measure_routing

FAMILIAR = (15, 16, 17, 0, 1, 2)  # steps of 20 degrees
SIZE, CROP, TYPES, BATCH, EVALUATIONS = 36, 24, 8, 32, 5


def em(iterations: int, **options: Any) -> Capsules:
    """em_smallnorb with 8 types in place of 32, for 24 x 24 pixels: 10 x 10, 4 x 4 and 2 x 2 places."""
    layers = (ConvCaps(TYPES, 16, kernel=3, stride=2), ConvCaps(TYPES, 16, kernel=3), Dense(children="type"))
    route = Route("em", iterations=iterations, options=SCALE | options)
    return Capsules((2, CROP, CROP), 5, route, NORB_STEM, Primary(TYPES, 16, 1, batch_norm=True), layers)


def cnn() -> Plain:
    """cnn_smallnorb, narrower."""
    body = [Conv(n, kernel=3, padding=1, norm="before", pool="max") for n in (10, 20, 20, 40)]
    return Plain((2, CROP, CROP), 5, Chain((*body, Conv(40, kernel=3, padding=1, norm="before", pool="global"))))


POSED, REFUSED = "em, 1 iteration, viewpoint in the pose", "em, 1 iteration, mixed children refused"
# name: (spec, learning rate)
NETWORKS: dict[str, tuple[Callable[[], Capsules | Plain], float]] = {
    "em, 3 iterations": (lambda: em(3), 0.004),
    "em, 1 iteration": (lambda: em(1), 0.004),
    "em, 2 iterations, tau 1": (lambda: em(2, sharpness=1.0), 0.004),
    POSED: (lambda: em(1), 0.004),
    REFUSED: (lambda: em(1), 0.004),
    "cnn": (cnn, 0.002),
}


def load(root: Path) -> tuple[Split, Split, Split]:
    """(training, all azimuths of the training toys, all azimuths of the test toys), 36 x 36."""
    train = synthetic_norb(root, size=48, azimuths=FAMILIAR).train
    views = synthetic_norb(root, size=48, elevations=range(0, 9, 2), lightings=(0, 2, 4))
    small = [Split(resize(x.images, SIZE), x.labels, x.info) for x in (train, views.train, views.test)]
    return small[0], small[1], small[2]


def is_familiar(split: Split) -> Tensor:
    return torch.isin(split.info["azimuth"], 2 * torch.tensor(FAMILIAR))


def some(split: Split, part: int) -> Split:
    """One image of `part`, at random, always the same."""
    return split.select(torch.randperm(len(split), generator=torch.Generator().manual_seed(0))[: len(split) // part])


def batches(split: Split, size: int = 250) -> list[Tensor]:
    return list(to_float(center_crop(split.images, CROP)).split(size))


@torch.no_grad()
def predict(model: Model, split: Split) -> Tensor:
    """Whether each image is answered wrongly, (N,)."""
    model.eval()
    answers = torch.cat([model(x).scores.argmax(1) for x in batches(split)])
    model.train()
    return answers != split.labels


def percent(x: Tensor) -> float:
    return round(100 * float(x.double().mean()), 2)


def loss_of(name: str, model: Any, x: Tensor, labels: Tensor, azimuth: Tensor) -> Tensor:
    """Cross-entropy, and what the two candidates add to it."""
    rows = torch.arange(len(x))
    if name == REFUSED:
        return refusal(model, x, labels)
    out = model(x)
    loss = F.cross_entropy(out.scores if name == "cnn" else logit(out.scores), labels)
    if name == POSED:  # two elements of the right class's pose are to be the azimuth, so votes must agree on it
        loss = loss + F.mse_loss(out.routed.pose[rows, labels, :2], azimuth)
    return loss


def refusal(model: Any, x: Tensor, labels: Tensor) -> Tensor:
    """The right class is to be there for the children of an image, and not for children of several images of it."""
    first, second, top = model.capsules.layers
    u, a = top.take(second(first(model.primary(model.backbone(x)))))
    source = torch.empty(len(x), TYPES * 4, dtype=torch.int64)
    for label in labels.unique():
        rows = (labels == label).nonzero()[:, 0]
        source[rows] = rows[torch.randint(len(rows), (len(rows), TYPES * 4))]
    both = top(torch.cat([u, taken(u, source)]), torch.cat([a, taken(a, source)]))  # one batch normalisation for both
    logits = logit(both.activation)
    own = logits.gather(1, labels.repeat(2)[:, None])[:, 0]
    there = (torch.arange(2 * len(x)) < len(x)).float()
    return F.cross_entropy(logits[: len(x)], labels) + F.binary_cross_entropy_with_logits(own, there)


def taken(x: Tensor, source: Tensor) -> Tensor:
    """x (B, types, H, W, ...) with child k of image b from image source (B, types H W)[b, k]."""
    flat = x.flatten(1, 3)
    index = source.view(*source.shape, *[1] * (flat.ndim - 2)).expand(-1, -1, *flat.shape[2:])
    return flat.gather(0, index).view_as(x)


def train(folder: Path, name: str, steps: int, seed: int) -> None:
    torch.manual_seed(seed)
    data, _, test = load(folder)
    spec, lr = NETWORKS[name]
    model: Any = spec().build()
    few, round_azimuth = some(test, 3), circle(data)
    familiar = is_familiar(few)
    optimiser = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.05)
    curve, start, order = [], time.process_time(), torch.empty(0, dtype=torch.int64)
    loss_sum = 0.0
    for step in range(steps):
        t = step / steps
        p = t / 0.2 if t < 0.2 else 0.5 * (1 + math.cos(math.pi * (t - 0.2) / 0.8))
        for group in optimiser.param_groups:
            group["lr"] = 1e-5 + p * (lr - 1e-5)
        if len(order) < BATCH:
            order = torch.randperm(len(data))
        index, order = order[:BATCH], order[BATCH:]
        x = random_crop(data.images[index], CROP, 0, torch.randint(SIZE - CROP + 1, (BATCH, 2)))
        x = brightness_contrast(to_float(x), 0.12549, (0.5, 1.5), torch.rand(BATCH, 2))
        loss = loss_of(name, model, x, data.labels[index], round_azimuth[index])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        loss_sum += float(loss.detach())
        if (step + 1) % (steps // EVALUATIONS) == 0:
            wrong = predict(model, few)
            curve.append({"step": step + 1, "loss": round(loss_sum / (steps // EVALUATIONS), 4),
                          "familiar": percent(wrong[familiar]), "novel": percent(wrong[~familiar])})  # fmt: skip
            loss_sum = 0.0
            print(name, seed, curve[-1], flush=True)
    found = {"name": name, "steps": steps, "seed": seed, "lr": lr, "curve": curve, "cpu_s": time.process_time() - start,
             "parameters": sum(x.numel() for x in model.parameters())}  # fmt: skip
    torch.save(model.state_dict(), folder / f"{stem(name, steps, seed)}.pt")
    wrong, familiar = predict(model, test), is_familiar(test)
    azimuth = 10 * test.info["azimuth"]
    found["familiar"], found["novel"] = percent(wrong[familiar]), percent(wrong[~familiar])
    found["by_azimuth"] = {int(a): percent(wrong[azimuth == a]) for a in azimuth.unique()}
    (folder / f"{stem(name, steps, seed)}.json").write_text(json.dumps(found))
    print(name, steps, seed, found["familiar"], found["novel"], found["cpu_s"], flush=True)


def features(model: Any, x: Tensor) -> dict[str, Tensor]:
    """What every layer hands on, flattened, from the pixels to the scores."""
    pixels = (x - x.mean((1, 2, 3), keepdim=True)) / x.std((1, 2, 3), keepdim=True)
    found = {"pixels": pixels}
    if not hasattr(model, "capsules"):
        for k, block in enumerate(model.body):
            x = block(x)
            found[f"block {k + 1}"] = x
        found["scores"] = model.classifier(x.flatten(1))
        return {name: value.flatten(1) for name, value in found.items()}
    traces = trace_layers(model.capsules, *children(model.capsules, partial(model, x)))
    for name, trace in zip(("primary", "layer 1", "layer 2"), traces, strict=True):
        assert trace.activation is not None
        found[f"{name}, poses"], found[f"{name}, activations"] = trace.u, trace.activation
    out = traces[-1].out
    found["class poses"], found["scores"] = out.pose, logit(out.activation)
    return {name: value.flatten(1) for name, value in found.items()} | votes(traces[-1])


def logit(activation: Tensor | None) -> Tensor:
    assert activation is not None
    return activation.clamp(1e-6, 1 - 1e-6).logit()


def votes(trace: LayerTrace) -> dict[str, Tensor]:
    """Of each class, (B, J): its share of the votes, how large they are and how well they agree.

    -log sigma is their agreement less their size: sigma^2 = m (1 - mu^2 / m), m the mean square of the votes.
    """
    n, mu, m = weighted(trace)
    size, agreement = 0.5 * m.log().mean(-1), -0.5 * (1 - mu * mu / m).clamp(min=1e-6).log().mean(-1)
    share = n / n.sum(1, keepdim=True) * n.shape[1]
    return {"share": share, "size of votes": size, "agreement of votes": agreement, "-log sigma": agreement - size}


def weighted(trace: LayerTrace) -> tuple[Tensor, Tensor, Tensor]:
    """sum_i r'_ij (B, J), and the mean and mean square of the votes (B, J, D), of the last M-step."""
    v, r = trace.layer.votes(trace.u), trace.out.coupling  # (B, I, J, D), (B, I, J)
    assert trace.activation is not None
    assert r is not None
    weight = r * trace.activation.flatten(1)[..., None]
    n = weight.sum(1)
    mu, m = (torch.einsum("bij,bijd->bjd", weight, x) / n[..., None] for x in (v, v * v))
    return n, mu, m


def gathered(model: Model, split: Split, parts: tuple[str, ...] | None = None) -> dict[str, Tensor]:
    rows: dict[str, list[Tensor]] = {}
    for x in batches(split):
        for name, value in features(model, x).items():
            if parts is None or name in parts:
                rows.setdefault(name, []).append(value)
    return {name: torch.cat(value) for name, value in rows.items()}


def ridge(x: Tensor, y: Tensor, held: Tensor, score: Callable[[Tensor, Tensor], float]) -> Callable[[Tensor], Tensor]:
    """A linear map with the penalty that does best on the rows `held`, when fitted to the others; then to all."""
    mean, std = x.mean(0), x.std(0).clamp(min=1e-6)

    def scaled(new: Tensor) -> Tensor:
        return torch.cat([(new - mean) / std, torch.ones(len(new), 1)], 1)

    def solve(rows: Tensor, penalties: tuple[float, ...]) -> list[Tensor]:
        z = scaled(x[rows])
        dual = z.shape[1] > len(z)
        gram = (z @ z.T if dual else z.T @ z).double()
        target = (y[rows] if dual else z.T @ y[rows]).double()
        unit = z.square().sum() / len(z) * torch.eye(len(gram))
        weights = [torch.linalg.solve(gram + p * unit, target).float() for p in penalties]
        return [z.T @ w if dual else w for w in weights]

    grid, new = (1e-4, 1e-3, 1e-2, 1e-1, 1.0), scaled(x[held])
    found = [(score(new @ weight, y[held]), p) for weight, p in zip(solve(~held, grid), grid, strict=True)]
    (weight,) = solve(torch.ones_like(held), (min(found)[1],))
    return lambda new: scaled(new) @ weight


def wrong_classes(scores: Tensor, y: Tensor) -> float:
    return float((scores.argmax(1) != y.argmax(1)).double().mean())


def angle(circle: Tensor) -> Tensor:
    return torch.atan2(circle[:, 1], circle[:, 0])


def off(circle: Tensor, y: Tensor) -> float:
    """The median error of an angle, in degrees; 90 by chance."""
    apart = angle(circle) - angle(y)
    return float(torch.atan2(apart.sin(), apart.cos()).abs().median().rad2deg())


@torch.no_grad()
def probes(model: Model, toys: Split, test: Split) -> dict[str, Any]:
    """Linear maps from each layer to the class, and to the azimuth given the class, tested on other toys.

    Fitted to the training toys from familiar azimuths, and to as many of their images from all azimuths.
    """
    fits = {"familiar": toys.select(is_familiar(toys).nonzero()[:, 0]), "all": some(toys, 3)}
    fitted = {k: gathered(model, x) for k, x in fits.items()}
    tested, familiar = gathered(model, test), is_familiar(test)
    found: dict[str, Any] = {}
    for name in tested:
        for which, split in fits.items():
            held = split.info["instance"] == 9
            apply = ridge(fitted[which][name], F.one_hot(split.labels).float(), held, wrong_classes)
            wrong = apply(tested[name]).argmax(1) != test.labels
            row = {"familiar": percent(wrong[familiar]), "novel": percent(wrong[~familiar])}
            found.setdefault(name, {})[f"class, from {which} azimuths"] = row
    for name in ("layer 2, poses", "class poses", "block 4", "block 5"):
        for which, split in fits.items() if name in tested else ():
            errors: dict[str, list[float]] = {"familiar": [], "novel": []}
            for label in range(5):
                mine, new = split.labels == label, test.labels == label
                x, z = fitted[which][name][mine], tested[name][new]
                if name == "class poses":  # the right class's own
                    x, z = (t.unflatten(1, (5, -1))[:, label] for t in (x, z))
                y, truth = (circle(s)[rows] for s, rows in ((split, mine), (test, new)))
                guess = ridge(x, y, split.info["instance"][mine] == 9, off)(z)
                for key, rows in (("familiar", familiar[new]), ("novel", ~familiar[new])):
                    errors[key].append(off(guess[rows], truth[rows]))
            row = {key: round(sum(x) / 5, 1) for key, x in errors.items()}
            found[name][f"azimuth off by, from {which} azimuths"] = row
    return found


def circle(split: Split) -> Tensor:
    theta = torch.deg2rad(10.0 * split.info["azimuth"])
    return torch.stack([theta.cos(), theta.sin()], 1)


@torch.no_grad()
def evidence(model: Model, toys: Split, test: Split) -> dict[str, Any]:
    """How far the right class stands out from the others, in standard deviations of a class over all images."""
    found: dict[str, Any] = {}
    names = ("scores", "share", "size of votes", "agreement of votes", "-log sigma")
    base, new = gathered(model, some(toys, 3), names), gathered(model, test, names)
    familiar, right = is_familiar(test), F.one_hot(test.labels, 5).bool()
    for name in names:
        x = (new[name] - base[name].mean(0)) / base[name].std(0).clamp(min=1e-6)
        gap = x[right] - x[~right].view(-1, 4).mean(1)
        rows = {"familiar": familiar, "novel": ~familiar}
        found[name] = {key: round(float(gap[row].mean()), 3) for key, row in rows.items()}
    return found


@torch.no_grad()
def interventions(model: Any, toys: Split, test: Split) -> dict[str, Any]:
    """Errors where the class layer's children are changed; scores are calibrated again on training toys, linearly.

    fixed: the mean over the training toys from familiar azimuths, of each type at each place. mixed: every child comes
    from another image of the same class, from the same azimuth or from any that is as familiar.
    """
    layer = model.capsules.layers[-1]

    def given(split: Split) -> tuple[Tensor, Tensor]:
        found = [children_of_classes(model, x) for x in batches(split)]
        return torch.cat([x[0] for x in found]), torch.cat([x[1] for x in found])

    def scores(u: Tensor, a: Tensor) -> Tensor:
        parts = zip(u.split(250), a.split(250), strict=True)
        return torch.cat([logit(layer(x, y).activation) for x, y in parts])

    base = toys.select(is_familiar(toys).nonzero()[:, 0])
    (u, a), (u_new, a_new) = given(base), given(test)
    familiar, held = is_familiar(test), base.info["instance"] == 9
    generator = torch.Generator().manual_seed(0)

    def mixed(split: Split, by_azimuth: bool) -> Tensor:
        group = split.labels * 100 + (split.info["azimuth"] if by_azimuth else 50 * is_familiar(split).long())
        source = torch.empty(len(split), TYPES * 4, dtype=torch.int64)
        for g in group.unique():
            rows = (group == g).nonzero()[:, 0]
            source[rows] = rows[torch.randint(len(rows), (len(rows), TYPES * 4), generator=generator)]
        return source

    same, any_view = (mixed(test, by) for by in (True, False))
    changed = {
        "nothing": ((u, a), (u_new, a_new)),
        "activations fixed": ((u, a.mean(0).expand_as(a)), (u_new, a.mean(0).expand_as(a_new))),
        "poses fixed": ((u.mean(0).expand_as(u), a), (u.mean(0).expand_as(u_new), a_new)),
        "children mixed, one azimuth": ((u, a), (taken(u_new, same), taken(a_new, same))),
        "children mixed, all azimuths": ((u, a), (taken(u_new, any_view), taken(a_new, any_view))),
    }
    found: dict[str, Any] = {}
    for name, (old, new) in changed.items():
        z = scores(*new)
        fit = ridge(scores(*old), F.one_hot(base.labels).float(), held, wrong_classes)(z)
        for how, x in (("as trained", z), ("calibrated", fit)):
            wrong = x.argmax(1) != test.labels
            row = {"familiar": percent(wrong[familiar]), "novel": percent(wrong[~familiar])}
            found.setdefault(name, {})[how] = row
    return found


@torch.no_grad()
def one_matrix(model: Any, test: Split) -> dict[str, Any]:
    """Whether a turn by 20 degrees changes the poses of all children by one matrix, as that of a rigid body would.

    P' = M P for all children of an image pair, poses less their mean over all images, weighted by activations. The part
    of the squares of P' that is explained by a number in place of M, and by a 4 x 4 matrix; then the same for two
    images that have nothing to do with each other, which shows what so many free numbers explain by chance.
    """
    test = test.select(is_familiar(test).nonzero()[:, 0])
    keys = torch.stack([test.labels, *(test.info[x] for x in ("instance", "elevation", "lighting"))], 1)
    turn = (test.info["azimuth"] // 2 - FAMILIAR[0]) % 18  # 0 to 5
    order = (((keys * torch.tensor([10**6, 10**4, 10**2, 10])).sum(1)) + turn).argsort().view(-1, len(FAMILIAR))
    chance = order[:, 0][torch.randperm(len(order), generator=torch.Generator().manual_seed(0))]
    pairs = {"turned": (order[:, :-1].flatten(), order[:, 1:].flatten()), "by chance": (order[:, 0], chance)}
    found: dict[str, Any] = {}
    got = gathered(model, test, tuple(f"{x}, {y}" for x in ("primary", "layer 2") for y in ("poses", "activations")))
    for name in ("primary", "layer 2"):
        pose = got[f"{name}, poses"]
        pose = (pose - pose.mean(0)).view(len(test), -1, 4, 4)  # (B, I, 4, 4)
        weight = got[f"{name}, activations"].sqrt()[..., None, None]
        x = (weight * pose).transpose(1, 2).flatten(2)  # (B, 4, 4 I): M stands on the left of every child's pose
        for which, (a, b) in pairs.items():
            cross, own = x[b] @ x[a].mT, x[a] @ x[a].mT  # (B, 4, 4)
            total = x[b].square().sum((1, 2))
            number = cross.diagonal(dim1=1, dim2=2).sum(1).square() / own.diagonal(dim1=1, dim2=2).sum(1)
            matrix = (torch.linalg.solve(own, cross.mT) * cross.mT).sum((1, 2))
            row = {"number": number, "matrix": matrix}
            found.setdefault(name, {})[which] = {k: percent(v.sum() / total.sum()) for k, v in row.items()}
    return found


@torch.no_grad()
def templates(model: Any, toys: Split, test: Split) -> dict[str, Any]:
    """Whether the votes for a class agree with each other, or each with a pose that is the same for all images.

    The class is read, by a linear map of five numbers, from -log sigma about the votes' own mean mu, and about a fixed
    pose in its place: the mean of mu over the training toys of that class from familiar azimuths. moves: the variance
    of the right class's mu over images, divided by the mean variance of the votes about mu, which is what is left to
    carry the viewpoint.
    """
    base = toys.select(is_familiar(toys).nonzero()[:, 0])

    def moments(split: Split) -> tuple[Tensor, Tensor]:
        """mu and the mean square of the votes, (N, J, D)."""
        rows = []
        for x in batches(split):
            trace = trace_layers(model.capsules, *children(model.capsules, partial(model, x)))[-1]
            rows.append(weighted(trace)[1:])
        return torch.cat([mu for mu, _ in rows]), torch.cat([m for _, m in rows])

    (mu, m), (mu_new, m_new) = moments(base), moments(test)
    fixed = torch.stack([mu[base.labels == j, j].mean(0) for j in range(5)])  # (J, D)
    familiar, held, found = is_familiar(test), base.info["instance"] == 9, {}
    about = {"their mean": (mu, mu_new), "a fixed pose": (fixed.expand_as(mu), fixed.expand_as(mu_new))}
    for name, centres in about.items():
        x, z = (-0.5 * (q - 2 * c * u + c * c).clamp(min=1e-8).log().mean(-1)
                for q, c, u in ((m, centres[0], mu), (m_new, centres[1], mu_new)))  # fmt: skip
        wrong = ridge(x, F.one_hot(base.labels).float(), held, wrong_classes)(z).argmax(1) != test.labels
        found[f"votes about {name}"] = {"familiar": percent(wrong[familiar]), "novel": percent(wrong[~familiar])}
    index = torch.arange(len(test))
    own, spread = mu_new[index, test.labels], (m_new - mu_new.square())[index, test.labels]  # (N, D)
    for key, rows in (("familiar", familiar), ("novel", ~familiar)):
        moved = torch.stack([own[rows & (test.labels == j)].var(0) for j in range(5)])
        apart = torch.stack([spread[rows & (test.labels == j)].mean(0) for j in range(5)])
        found.setdefault("moves", {})[key] = round(float((moved / apart).mean()), 3)
    return found


def children_of_classes(model: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    trace = trace_layers(model.capsules, *children(model.capsules, partial(model, x)))[-1]
    assert trace.activation is not None
    return trace.u, trace.activation


def measure(folder: Path, name: str, steps: int, seed: int) -> None:
    _, toys, test = load(folder)
    model: Any = NETWORKS[name][0]().build()
    model.load_state_dict(torch.load(folder / f"{stem(name, steps, seed)}.pt"))
    model.eval()
    every, test = test, some(test, 2)
    found: dict[str, Any] = {"probes": probes(model, toys, test)}
    if hasattr(model, "capsules"):
        found |= {"evidence": evidence(model, toys, test), "interventions": interventions(model, toys, test),
                  "one matrix": one_matrix(model, every), "templates": templates(model, toys, test)}  # fmt: skip
        whole = Dataset("synthetic_norb", toys, test, 5, (2, SIZE, SIZE))
        for key, rows in (("familiar", is_familiar(test)), ("novel", ~is_familiar(test))):
            held = held_images(test.select(rows.nonzero()[:, 0]), CROP, whole)
            found[f"routing, {key}"] = dataclasses.asdict(measure_routing(model, held))
    path = folder / f"{stem(name, steps, seed)}.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | found))
    print(json.dumps(found, indent=1), flush=True)


def stem(name: str, steps: int, seed: int) -> str:
    return f"{name.replace(', ', '-').replace(' ', '_')}-{steps}-{seed}"


def by_distance(run: dict[str, Any]) -> dict[str, float]:
    """Errors by the degrees to the nearest familiar azimuth: 0, 20, ... 120."""
    rows: dict[int, list[float]] = {}
    for azimuth, error in run["by_azimuth"].items():
        apart = [abs(int(azimuth) - 20 * step) for step in FAMILIAR]
        rows.setdefault(min(min(x, 360 - x) for x in apart), []).append(error)
    return {str(k): round(sum(x) / len(x), 2) for k, x in sorted(rows.items())}


def matched(run: dict[str, Any], rivals: list[dict[str, Any]]) -> dict[str, float]:
    """Errors of CNNs by distance at the run's familiar error: a line through the four nearest in that error."""
    near = sorted(rivals, key=lambda x: abs(x["familiar"] - run["familiar"]))[:4]
    x = torch.tensor([[1.0, r["familiar"] - run["familiar"]] for r in near])
    keys = ("novel", *by_distance(run))
    y = torch.tensor([[r["novel"], *by_distance(r).values()] for r in near])
    level = torch.linalg.lstsq(x, y).solution[0]
    return {key: round(float(v), 2) for key, v in zip(keys, level, strict=True)}


def alike(run: dict[str, Any], rivals: list[dict[str, Any]]) -> float:
    """The correlation of its errors by novel azimuth with the mean of the CNNs'."""
    novel = [str(20 * k) for k in range(18) if k not in FAMILIAR]
    own = torch.tensor([run["by_azimuth"][k] for k in novel])
    theirs = torch.tensor([[x["by_azimuth"][k] for k in novel] for x in rivals]).mean(0)
    return round(float(torch.corrcoef(torch.stack([own, theirs]))[0, 1]), 3)


def collect(folder: Path) -> None:
    runs = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    rivals = [run for run in runs if run["name"] == "cnn"]
    for run in runs:
        run["by_distance"], run["cpu_s"] = by_distance(run), round(run["cpu_s"], 1)
        if run not in rivals:
            run["cnn_at_its_familiar_error"] = matched(run, rivals)
            run["correlation_with_cnn_by_novel_azimuth"] = alike(run, rivals)
    about = ("Why em is not ahead of a CNN on new azimuths: small networks on reduced synthetic-NORB. Percent wrong "
             "on toys that were not trained on; trials that choose nothing")  # fmt: skip
    record = {"about": about, "hardware": "CPU, 1 thread, beside other work", "commit": commit(),
              "versions": versions(),
              "command": "see em_views_diagnosis.py; every run has its name, steps and seed", "runs": runs}  # fmt: skip
    Path(__file__).with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    out = Path(sys.argv[1])
    if sys.argv[2] == "train":
        train(out, sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
    elif sys.argv[2] == "measure":
        measure(out, sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
    else:
        collect(out)
