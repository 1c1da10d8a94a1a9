"""EM routing without votes, against the reference with them."""

import pytest
import torch

from flashcaps import ConvCapsules, DenseCapsules
from flashcaps.kernels import dispatch
from flashcaps.kernels import votes as _blocks
from flashcaps.kernels.fit.plan import is_stored

from ..conftest import assert_near
from ..layer_cases import assert_same, run_layer
from .twins import TINY, Twins, elsewhere


class TestEM(Twins):
    routing = "em"


@pytest.mark.parametrize("form", ["reference", "on a CPU", "elsewhere", "triton"])
def test_variances_do_not_cancel_in_fp32(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Votes near 1000 that differ by 0.01, eight children a block: expanded second moments would leave nothing."""
    monkeypatch.setattr(_blocks, "BUDGET", TINY)
    if form == "elsewhere":
        elsewhere(monkeypatch)
    layer = DenseCapsules("em", in_capsules=64, in_dim=1, out_capsules=5, out_dim=1, iterations=1,
                          backend=form if form in ("reference", "triton") else "matrix")  # fmt: skip
    assert not is_stored(layer.weight)
    torch.nn.init.ones_(layer.weight)
    u = 1000 + 0.01 * torch.randn(2, 64, 1)
    variance = layer(u).variance
    assert_near(variance[:, :, 0] / u.double().var(1, correction=0), 1.0, 1e-2)


@pytest.mark.parametrize(("gated", "over"), [(False, "types"), (True, "positions")])
def test_convolutions_leave_children_in_their_image(gated: bool, over: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels' layer equals the reference and copies no patch; those who ask for couplings get them."""
    sizes = dict(in_types=2, in_dim=4, out_types=5, out_dim=4, kernel=2, stride=1, pose="matrix", over=over)
    layer, exact = (ConvCapsules("em", iterations=2, backend=b, **sizes) for b in ("triton", "reference"))
    exact.double().load_state_dict(layer.state_dict())
    u, activation = torch.randn(2, 2, 3, 2, 4), torch.rand(2, 2, 3, 2) if gated else None
    expected = run_layer(exact, u.double(), None if activation is None else activation.double())
    with monkeypatch.context() as patched:
        patched.setattr(dispatch, "patches", lambda *_: pytest.fail("patches were copied"))
        assert_same(run_layer(layer, u, activation), expected, torch.float32)
    assert layer(u, activation, coupling=True).coupling is not None
