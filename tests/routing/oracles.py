"""The papers' procedures as plain loops over Python floats: slow, obvious, and written without the library.

Every argument is a nested list. Votes are indexed [example][child i][parent j][element d].
"""

import math
from typing import NamedTuple

Vector = list[float]
Matrix = list[Vector]


class Result(NamedTuple):
    """What an oracle returns, one entry per example."""

    pose: list[Matrix]
    activation: list[Vector] | None
    coupling: list[Matrix]
    variance: list[Matrix] | None = None
    steps: list[list[tuple[Matrix, Matrix]]] | None = None  # [example][iteration] -> (coupling, pose)


def logistic(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def dot(x: Vector, y: Vector) -> float:
    total = 0.0
    for a, b in zip(x, y, strict=True):
        total += a * b
    return total


def norm(x: Vector) -> float:
    return math.sqrt(dot(x, x))


def squash(s: Vector) -> Vector:
    """||s||^2 / (1 + ||s||^2) s / ||s||, and 0 at 0."""
    n = norm(s)
    return [0.0] * len(s) if n == 0 else [n**2 / (1 + n**2) * x / n for x in s]


def softmax(row: Vector, leaky: bool = False) -> Vector:
    total = math.exp(0) if leaky else 0.0
    for x in row:
        total += math.exp(x)
    return [math.exp(x) / total for x in row]


def weighted_sum(weights: Matrix, votes: list[Matrix], j: int) -> Vector:
    """sum_i weights[i][j] votes[i][j]."""
    out = [0.0] * len(votes[0][j])
    for i in range(len(votes)):
        for d in range(len(out)):
            out[d] += weights[i][j] * votes[i][j][d]
    return out


def per_child(x: Matrix | Vector, i: int, j: int) -> float:
    """x[i][j] of an (I, J) table, x[j] of a (J,) one."""
    return x[i][j] if isinstance(x[0], list) else x[j]


def collect(examples: list[tuple]) -> Result:
    """One (pose, activation, coupling, variance, steps) per example -> Result."""
    return Result(*(None if column[0] is None else list(column) for column in zip(*examples, strict=True)))


# ---- dynamic: Procedure 1


def dynamic(
    votes: list, iterations: int = 3, logits=None, bias=None, leaky: bool = False, detach: bool = False
) -> Result:
    """detach changes gradients alone."""
    return collect([_dynamic(u, iterations, logits, bias, leaky) for u in votes])


def _dynamic(u: list[Matrix], iterations: int, logits, bias, leaky: bool) -> tuple:
    children, parents, dim = len(u), len(u[0]), len(u[0][0])
    b = [[0.0 if logits is None else per_child(logits, i, j) for j in range(parents)] for i in range(children)]
    steps = []
    for _ in range(iterations):
        c = [softmax(b[i], leaky) for i in range(children)]
        v = []
        for j in range(parents):
            s = weighted_sum(c, u, j)
            if bias is not None:
                s = [s[d] + bias[j][d] for d in range(dim)]
            v.append(squash(s))
        steps.append((c, v))
        b = [[b[i][j] + dot(u[i][j], v[j]) for j in range(parents)] for i in range(children)]
    return v, [norm(x) for x in v], c, None, steps


# ---- the Gaussian parents of em and heinsen


def moments(weights: Matrix, votes: list[Matrix], j: int, eps: float) -> tuple[float, Vector, Vector]:
    """Of parent j: the total weight, the weighted mean and the weighted variance of its votes."""
    total = 0.0
    for i in range(len(votes)):
        total += weights[i][j]
    mean = [x / (total + eps) for x in weighted_sum(weights, votes, j)]
    variance = []
    for d in range(len(mean)):
        spread = 0.0
        for i in range(len(votes)):
            spread += weights[i][j] * (votes[i][j][d] - mean[d]) ** 2
        variance.append(spread / (total + eps) + eps)
    return total, mean, variance


def density(vote: Vector, mean: Vector, variance: Vector) -> float:
    p = 1.0
    for x, m, s2 in zip(vote, mean, variance, strict=True):
        p *= math.exp(-((x - m) ** 2) / (2 * s2)) / math.sqrt(2 * math.pi * s2)
    return p


def assign(
    votes: list[Matrix], activation: Vector, means: Matrix, variances: Matrix, allowed: list, tau: float = 1.0
) -> Matrix:
    """r_ij = a_j p_ij^tau / sum_k a_k p_ik^tau over the parents the child can vote for."""
    r = []
    for i in range(len(votes)):
        score = [0.0] * len(activation)
        for j in range(len(activation)):
            if allowed[i][j]:
                score[j] = activation[j] * density(votes[i][j], means[j], variances[j]) ** tau
        total = sum(score)
        r.append([x / total if any(allowed[i]) else 0.0 for x in score])
    return r


def em_activation(total: float, variance: Vector, beta_u: float | Vector, beta_a: float, inverse: float) -> float:
    cost = 0.0
    for h, s2 in enumerate(variance):
        beta = beta_u[h] if isinstance(beta_u, list) else beta_u
        cost += (beta + math.log(math.sqrt(s2))) * total
    return logistic(inverse * (beta_a - cost))


# ---- em: Procedure 1 of the slides


def em(
    votes: list,
    activation: list,
    beta_u,
    beta_a,
    inverse_temperature,
    iterations: int = 3,
    eps: float = 1e-8,
    mask=None,
    sharpness=1.0,
    share: float | None = None,
) -> Result:
    """share: n_0 of the cost by share and element, or None for that of Procedure 1."""
    if isinstance(inverse_temperature, float):
        inverse_temperature = [inverse_temperature] * iterations
    if isinstance(sharpness, float):
        sharpness = [sharpness] * iterations
    if mask is None:
        mask = [[True] * len(votes[0][0])] * len(votes[0])
    return collect(
        [
            _em(v, a, beta_u, beta_a, inverse_temperature, eps, mask, sharpness, share)
            for v, a in zip(votes, activation, strict=True)
        ]
    )


def _em(
    votes: list[Matrix], a: Vector, beta_u, beta_a, inverse: Vector, eps: float, mask: list[list[bool]],
    sharpness: Vector, share: float | None,
) -> tuple:  # fmt: skip
    children, parents = len(votes), len(votes[0])
    r = [[1 / sum(mask[i]) if mask[i][j] else 0.0 for j in range(parents)] for i in range(children)]
    means, variances, active, steps = [], [], [], []
    for t, lam in enumerate(inverse):
        if t > 0:
            r = assign(votes, active, means, variances, mask, sharpness[t - 1])
        gated = [[r[i][j] * a[i] for j in range(parents)] for i in range(children)]
        means, variances, active = [], [], []
        for j in range(parents):
            total, mean, variance = moments(gated, votes, j, eps)
            means.append(mean)
            variances.append(variance)
            if share is None:
                active.append(em_activation(total, variance, beta_u[j], beta_a[j], lam))
            else:
                mean_cost = sum(beta_u[j] + 0.5 * math.log(s2) for s2 in variance) / len(variance)
                active.append(logistic(lam * (beta_a[j] - total / share * mean_cost)))
        steps.append((r, means))
    return means, active, r, variances, steps


# ---- attention: one step of Procedure 1


def attention(
    votes: list,
    pose=None,
    scale: float = 1.0,
    norm: bool = True,
    weight=None,
    bias=None,
    activation=None,
    beta_u=None,
    beta_a=None,
) -> Result:
    """activation, beta_u, beta_a: ablation C."""
    betas, examples = None if beta_u is None else (beta_u, beta_a), []
    for e in range(len(votes)):
        gates = [1.0] * len(votes[e]) if activation is None else activation[e]
        gated = [[[g * x for x in vote] for vote in child] for g, child in zip(gates, votes[e], strict=True)]
        examples.append(_attention(gated, None if pose is None else pose[e], scale, norm, weight, bias, betas))
    return collect(examples)


def _attention(v: list[Matrix], pose, scale: float, norm: bool, weight, bias, betas) -> tuple:
    children, parents = len(v), len(v[0])
    r = []
    for i in range(children):
        r.append(softmax([0.0 if pose is None else scale * dot(pose[j], v[i][j]) for j in range(parents)]))
    p = [weighted_sum(r, v, j) for j in range(parents)]
    if norm:
        p = [layer_norm(x, weight, bias) for x in p]
    active = variances = None
    if betas is not None:
        active, variances = [], []
        for j in range(parents):
            total, _, variance = moments(r, v, j, 1e-8)  # em's default eps
            variances.append(variance)
            active.append(em_activation(total, variance, betas[0][j], betas[1][j], 1.0))
    return p, active, r, variances, [(r, p)]


def layer_norm(x: Vector, weight=None, bias=None) -> Vector:
    mean = sum(x) / len(x)
    variance = sum((e - mean) ** 2 for e in x) / len(x)
    out = []
    for d in range(len(x)):
        y = (x[d] - mean) / math.sqrt(variance + 1e-5)
        y = y if weight is None else y * weight[d]
        out.append(y if bias is None else y + bias[d])
    return out


# ---- heinsen: Algorithm 1


def heinsen(
    votes: list, score: list, beta_use, beta_ignore, iterations: int = 3, eps: float = 1e-5, start=None
) -> Result:
    return collect(
        [_heinsen(v, a, beta_use, beta_ignore, iterations, eps, start) for v, a in zip(votes, score, strict=True)]
    )


def _heinsen(votes: list[Matrix], score: Vector, beta_use, beta_ignore, iterations: int, eps: float, start) -> tuple:
    children, parents = len(votes), len(votes[0])
    everyone = [[True] * parents] * children
    out, means, variances, steps = [], [], [], []
    for t in range(iterations):
        if t > 0:  # E-step
            r = assign(votes, [logistic(a) for a in out], means, variances, everyone)
        elif start is None:
            r = [[1 / parents] * parents for _ in range(children)]
        else:
            r = [softmax(start[i]) for i in range(children)]
        use = [[logistic(score[i]) * r[i][j] for j in range(parents)] for i in range(children)]  # D-step
        ignore = [[logistic(score[i]) - use[i][j] for j in range(parents)] for i in range(children)]
        out, means, variances = [], [], []  # M-step
        for j in range(parents):
            benefit = cost = 0.0
            for i in range(children):
                benefit += per_child(beta_use, i, j) * use[i][j]
                cost += per_child(beta_ignore, i, j) * ignore[i][j]
            out.append(benefit - cost)
            _, mean, variance = moments(use, votes, j, eps)
            means.append(mean)
            variances.append(variance)
        steps.append((r, means))
    return means, out, r, variances, steps


# ---- discriminative: Eq. 6 and 2; Eq. 13 and 15


def discriminative(votes: list, coefficients: Matrix) -> Result:
    examples = []
    for u in votes:
        s = [squash(weighted_sum(coefficients, u, j)) for j in range(len(u[0]))]
        examples.append((s, [norm(x) for x in s], coefficients, None, [(coefficients, s)]))
    return collect(examples)


def discriminative_update(
    b: Matrix, votes: list, classes: list[set[int]], rate: float, strength: float, penalty: str = "l2"
) -> Matrix:
    """One step of the printed Eq. 13 or 15; classes[k] are those present in example k."""
    children, parents = len(b), len(b[0])
    new = [[0.0] * parents for _ in range(children)]
    for j in range(parents):
        for i in range(children):
            inside = outside = 0.0
            for u, present in zip(votes, classes, strict=True):
                delta = 1 if j in present else -1
                for other in range(children):
                    inside += delta * dot(u[i][j], u[other][j]) * b[other][j]  # a row of delta U U^T b
                if penalty == "l2":
                    inside -= strength / 2 * b[i][j]
            if penalty == "l1":
                outside = strength * ((b[i][j] > 0) - (b[i][j] < 0))
            new[i][j] = b[i][j] + 2 * rate * (inside - outside)
    return new
