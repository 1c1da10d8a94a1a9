import torch

from flashcaps.data.random import draws, make_generator, uniform

GOLDEN = 0x9E3779B97F4A7C15


def mix(x: int) -> int:
    """SplitMix64's mixer on Python integers."""
    m = (1 << 64) - 1
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & m
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & m
    return x ^ (x >> 31)


def test_tensor_arithmetic_is_that_of_unsigned_64_bit_integers():
    m = (1 << 64) - 1
    index, seed = [0, 1, 2**40 + 17], 12345
    expected = [
        [mix(mix((mix((i * GOLDEN + seed) & m) + s * GOLDEN) & m)) & (2**62 - 1) for s in (1, 2, 3)] for i in index
    ]
    assert draws(seed, torch.tensor(index), 3).tolist() == expected
    # and the mixer is the published one, whose first outputs are these when it starts at 1234567
    assert [mix((1234567 + k * GOLDEN) & ((1 << 64) - 1)) for k in (1, 2)] == [6457827717110365317, 3203168211198807973]


def test_uniform_is_flat_and_its_columns_independent():
    u = uniform(0, torch.arange(40_000), 3).double()
    assert u.min() >= 0
    assert u.max() < 1
    counts = torch.stack([torch.histc(u[:, c], 20, 0, 1) for c in range(3)])
    chi2 = ((counts - 2000) ** 2 / 2000).sum(1)  # 19 degrees of freedom: 99.9 % below 43.8
    assert chi2.max() < 43.8
    assert (torch.corrcoef(u.T) - torch.eye(3)).abs().max() < 0.02
    assert torch.corrcoef(torch.stack([u[1:, 0], u[:-1, 0]]))[0, 1].abs() < 0.02


def test_each_seed_has_a_generator_of_its_own():
    first, again, other = (torch.rand(3, generator=make_generator(seed)).tolist() for seed in (0, 0, 1))
    assert first == again != other
