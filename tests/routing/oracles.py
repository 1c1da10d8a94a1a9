"""The papers' procedures as plain loops over Python floats: slow, obvious, and written without the library.

Every argument is a nested list. An oracle is written for one example, whose votes are indexed [child i][parent j]
[element d], and called for a batch.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

Vector = list[float]
Matrix = list[Vector]
Votes = list[Matrix]
OF_EXAMPLES = ("activation", "score", "pose")  # arguments that have an entry for each example, as votes have


class Result(NamedTuple):
    """What an oracle returns, one entry per example."""

    pose: list[Matrix]
    activation: list[Vector] | None
    coupling: list[Matrix]
    variance: list[Matrix] | None = None
    steps: list[list[tuple[Matrix, Matrix]]] | None = None  # [example][iteration] -> (coupling, pose)


def of_a_batch(oracle: Callable[..., tuple]) -> Callable[..., Result]:
    """The Result of a batch, from (pose, activation, coupling, variance, steps) of each example."""

    def run(votes: list[Votes], **arguments: Any) -> Result:
        examples = []
        for e, example in enumerate(votes):
            own = {name: x[e] if name in OF_EXAMPLES and x is not None else x for name, x in arguments.items()}
            examples.append(oracle(example, **own))
        return Result(*(None if column[0] is None else list(column) for column in zip(*examples, strict=True)))

    return run


def logistic(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def dot(x: Vector, y: Vector) -> float:
    return sum(a * b for a, b in zip(x, y, strict=True))


def norm(x: Vector) -> float:
    return math.sqrt(dot(x, x))


def squash(s: Vector) -> Vector:
    """||s||^2 / (1 + ||s||^2) s / ||s||, and 0 at 0."""
    n = norm(s)
    return [0.0] * len(s) if n == 0 else [n**2 / (1 + n**2) * x / n for x in s]


def softmax(row: Vector, leaky: bool = False) -> Vector:
    total = sum(math.exp(x) for x in row) + (math.exp(0) if leaky else 0)
    return [math.exp(x) / total for x in row]


def weighted_sum(weights: Matrix, votes: Votes, j: int) -> Vector:
    """sum_i weights[i][j] votes[i][j]."""
    return [sum(weights[i][j] * votes[i][j][d] for i in range(len(votes))) for d in range(len(votes[0][j]))]


def per_child(x: Matrix | Vector, i: int, j: int) -> float:
    """x[i][j] of an (I, J) table, x[j] of a (J,) one."""
    return x[i][j] if isinstance(x[0], list) else x[j]


# ---- dynamic: Procedure 1


@of_a_batch
def dynamic(u: Votes, iterations: int = 3, logits=None, bias=None, leaky: bool = False, detach: bool = False) -> tuple:
    """detach changes gradients alone."""
    children, parents = range(len(u)), range(len(u[0]))
    b = [[0.0 if logits is None else per_child(logits, i, j) for j in parents] for i in children]
    steps = []
    for _ in range(iterations):
        c = [softmax(b[i], leaky) for i in children]
        s = [weighted_sum(c, u, j) for j in parents]
        if bias is not None:
            s = [[x + y for x, y in zip(s[j], bias[j], strict=True)] for j in parents]
        v = [squash(x) for x in s]
        steps.append((c, v))
        b = [[b[i][j] + dot(u[i][j], v[j]) for j in parents] for i in children]
    return v, [norm(x) for x in v], c, None, steps


# ---- the Gaussian parents of em and heinsen


def moments(weights: Matrix, votes: Votes, eps: float) -> tuple[Vector, Matrix, Matrix]:
    """Of every parent: the total weight, the weighted mean and the weighted variance of its votes."""
    totals, means, variances = [], [], []
    for j in range(len(votes[0])):
        total = sum(row[j] for row in weights)
        mean = [x / (total + eps) for x in weighted_sum(weights, votes, j)]
        squares = [[[(x - m) ** 2 for x, m in zip(vote, mean, strict=True)] for vote in child] for child in votes]
        totals.append(total)
        means.append(mean)
        variances.append([x / (total + eps) + eps for x in weighted_sum(weights, squares, j)])
    return totals, means, variances


def density(vote: Vector, mean: Vector, variance: Vector) -> float:
    return math.prod(
        math.exp(-((x - m) ** 2) / (2 * s2)) / math.sqrt(2 * math.pi * s2)
        for x, m, s2 in zip(vote, mean, variance, strict=True)
    )


def assign(
    votes: Votes, activation: Vector, means: Matrix, variances: Matrix, allowed: list, tau: float = 1.0
) -> Matrix:
    """r_ij = a_j p_ij^tau / sum_k a_k p_ik^tau over the parents the child can vote for."""
    r = []
    for i in range(len(votes)):
        score = [0.0] * len(activation)
        for j in range(len(activation)):
            if allowed[i][j]:
                score[j] = activation[j] * density(votes[i][j], means[j], variances[j]) ** tau
        r.append([x / sum(score) if any(allowed[i]) else 0.0 for x in score])
    return r


def em_activation(total: float, variance: Vector, beta_u: float | Vector, beta_a: float, inverse: float) -> float:
    betas = beta_u if isinstance(beta_u, list) else [beta_u] * len(variance)
    cost = sum((beta + math.log(math.sqrt(s2))) * total for beta, s2 in zip(betas, variance, strict=True))
    return logistic(inverse * (beta_a - cost))


# ---- em: Procedure 1 of the slides


@of_a_batch
def em(
    votes: Votes, activation: Vector, beta_u, beta_a, inverse_temperature, iterations: int = 3, eps: float = 1e-8,
    mask=None, sharpness=1.0, share: float | None = None,
) -> tuple:  # fmt: skip
    """share: n_0 of the cost by share and element, or None for that of Procedure 1."""
    children, parents = range(len(votes)), range(len(votes[0]))
    lambdas, taus = ([x] * iterations if isinstance(x, float) else x for x in (inverse_temperature, sharpness))
    mask = mask or [[True] * len(parents)] * len(children)
    r = [[1 / sum(mask[i]) if mask[i][j] else 0.0 for j in parents] for i in children]
    means, variances, active, steps = [], [], [], []
    for t, lam in enumerate(lambdas):
        if t > 0:
            r = assign(votes, active, means, variances, mask, taus[t - 1])
        gated = [[r[i][j] * activation[i] for j in parents] for i in children]
        totals, means, variances = moments(gated, votes, eps)
        active = []
        for j in parents:
            if share is None:
                active.append(em_activation(totals[j], variances[j], beta_u[j], beta_a[j], lam))
            else:
                mean_cost = sum(beta_u[j] + 0.5 * math.log(s2) for s2 in variances[j]) / len(variances[j])
                active.append(logistic(lam * (beta_a[j] - totals[j] / share * mean_cost)))
        steps.append((r, means))
    return means, active, r, variances, steps


# ---- attention: one step of Procedure 1


@of_a_batch
def attention(
    v: Votes, pose=None, scale: float = 1.0, norm: bool = True, weight=None, bias=None, activation=None, beta_u=None,
    beta_a=None,
) -> tuple:  # fmt: skip
    """activation, beta_u, beta_a: ablation C."""
    parents = range(len(v[0]))
    if activation is not None:
        v = [[[a * x for x in vote] for vote in child] for a, child in zip(activation, v, strict=True)]
    r = [softmax([0.0 if pose is None else scale * dot(pose[j], child[j]) for j in parents]) for child in v]
    p = [weighted_sum(r, v, j) for j in parents]
    if norm:
        p = [layer_norm(x, weight, bias) for x in p]
    active = variances = None
    if beta_u is not None:
        totals, _, variances = moments(r, v, 1e-8)  # em's default eps
        active = [em_activation(totals[j], variances[j], beta_u[j], beta_a[j], 1.0) for j in parents]
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


@of_a_batch
def heinsen(
    votes: Votes, score: Vector, beta_use, beta_ignore, iterations: int = 3, eps: float = 1e-5, start=None
) -> tuple:
    children, parents = range(len(votes)), range(len(votes[0]))
    everyone = [[True] * len(parents)] * len(children)
    r = [softmax([0.0] * len(parents) if start is None else start[i]) for i in children]
    out, means, variances, steps = [], [], [], []
    for t in range(iterations):
        if t > 0:  # E-step
            r = assign(votes, [logistic(a) for a in out], means, variances, everyone)
        use = [[logistic(score[i]) * r[i][j] for j in parents] for i in children]  # D-step
        ignore = [[logistic(score[i]) - use[i][j] for j in parents] for i in children]
        out = []  # M-step
        for j in parents:
            benefit = sum(per_child(beta_use, i, j) * use[i][j] for i in children)
            cost = sum(per_child(beta_ignore, i, j) * ignore[i][j] for i in children)
            out.append(benefit - cost)
        _, means, variances = moments(use, votes, eps)
        steps.append((r, means))
    return means, out, r, variances, steps


# ---- discriminative: Eq. 6 and 2; Eq. 13 and 15


@of_a_batch
def discriminative(u: Votes, coefficients: Matrix) -> tuple:
    s = [squash(weighted_sum(coefficients, u, j)) for j in range(len(u[0]))]
    return s, [norm(x) for x in s], coefficients, None, [(coefficients, s)]


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
