"""The paper's equations in plain Python loops over lists of floats: slow, obvious, independent.

Nothing here imports the package. A matrix is a list of rows; sets have no padding.
"""

import math
from collections.abc import Callable, Sequence

Vector = Sequence[float]
Matrix = Sequence[Vector]
Kernel = Callable[[Vector, Vector, float], float]


def distance(u: Vector, v: Vector) -> float:
    return math.sqrt(sum((a - b) ** 2 for a, b in zip(u, v, strict=True)))


def rbf(u: Vector, v: Vector, sigma: float) -> float:
    return math.exp(-(distance(u, v) ** 2) / (2 * sigma**2))


def laplace(u: Vector, v: Vector, sigma: float) -> float:
    return math.exp(-distance(u, v) / sigma)


def matern32(u: Vector, v: Vector, sigma: float) -> float:
    s = math.sqrt(3) * distance(u, v) / sigma
    return (1 + s) * math.exp(-s)


def matern52(u: Vector, v: Vector, sigma: float) -> float:
    r = distance(u, v) / sigma
    return (1 + math.sqrt(5) * r + 5 * r**2 / 3) * math.exp(-math.sqrt(5) * r)


def super_gaussian(u: Vector, v: Vector, sigma: float) -> float:
    return math.exp(-((distance(u, v) ** 2 / (2 * sigma**2)) ** 4))


def kernel_matrix(z: Matrix, sigma: float, kernel: Kernel) -> list[list[float]]:
    return [[kernel(u, v, sigma) for v in z] for u in z]


def softmax_rows(K: Matrix, temperature: float = 1.0) -> list[list[float]]:
    W = []
    for row in K:
        powers = [math.exp(value / temperature) for value in row]
        W.append([p / sum(powers) for p in powers])
    return W


def normalized_rows(K: Matrix, temperature: float = 1.0) -> list[list[float]]:
    W = []
    for row in K:
        powers = [value ** (1 / temperature) for value in row]
        W.append([p / sum(powers) for p in powers])
    return W


def messages(W: Matrix, x: Matrix) -> list[list[float]]:
    n, d = len(x), len(x[0])
    return [[sum(W[i][j] * x[j][f] for j in range(n)) for f in range(d)] for i in range(n)]


def blend(x: Matrix, y: Matrix, gamma: float) -> list[list[float]]:
    return [
        [(1 - gamma) * a + gamma * b for a, b in zip(u, v, strict=True)] for u, v in zip(x, y, strict=True)
    ]


def dense(x: Matrix, weight: Matrix, bias: Vector, activation: Callable[[float], float]) -> list[list[float]]:
    """weight is [out][in], as torch keeps it."""
    return [
        [
            activation(sum(w * a for w, a in zip(row, u, strict=True)) + b)
            for row, b in zip(weight, bias, strict=True)
        ]
        for u in x
    ]


def energy(x: Matrix, W: Matrix, C: float = 1.0) -> float:
    """Over unordered pairs, each once, with the mean weight of its two directions."""
    total = 0.0
    for i in range(len(x)):
        for j in range(i):
            total += (W[i][j] + W[j][i]) / 2 * distance(x[i], x[j]) ** 2
    return C / 2 * total


def pooled(x: Matrix, how: str) -> list[float]:
    columns = list(zip(*x, strict=True))
    if how == "sum":
        return [sum(c) for c in columns]
    if how == "mean":
        return [sum(c) / len(c) for c in columns]
    return [max(c) for c in columns]


def added(x: Matrix, y: Matrix) -> list[list[float]]:
    return [[a + b for a, b in zip(u, v, strict=True)] for u, v in zip(x, y, strict=True)]


def attention(Q: Matrix, K: Matrix, V: Matrix, heads: int) -> list[list[float]]:
    """Each head sees its own slice of the features; scores are divided by the root of their whole number."""
    d = len(Q[0])
    width = d // heads
    out = [[0.0] * d for _ in Q]
    for head in range(heads):
        features = range(head * width, (head + 1) * width)
        for i, q in enumerate(Q):
            powers = [math.exp(sum(q[f] * k[f] for f in features) / math.sqrt(d)) for k in K]
            for f in features:
                out[i][f] = sum(p * v[f] for p, v in zip(powers, V, strict=True)) / sum(powers)
    return out


def layer_norm(x: Matrix, weight: Vector, bias: Vector, epsilon: float = 1e-5) -> list[list[float]]:
    out = []
    for u in x:
        mean = sum(u) / len(u)
        variance = sum((a - mean) ** 2 for a in u) / len(u)
        scaled = [(a - mean) / math.sqrt(variance + epsilon) for a in u]
        out.append([a * w + b for a, w, b in zip(scaled, weight, bias, strict=True)])
    return out


def relu(value: float) -> float:
    return max(value, 0.0)


def identity(value: float) -> float:
    return value
