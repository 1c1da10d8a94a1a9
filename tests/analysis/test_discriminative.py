"""Coefficients counted by hand; a borrowed decoder is the other model's."""

import pytest
import torch

from flashcaps.analysis import DoesNotApply
from flashcaps.analysis.discriminative import borrowed_decoder, curve, sparsity
from flashcaps.training.checkpoint import save_weights
from tests.analysis.conftest import small_run


def test_sizes_of_coefficients_in_order():
    b = torch.tensor([[1.0, -0.5], [0.005, 0.0], [-0.009, 0.02]])
    sizes, share = curve(b)
    assert sizes.tolist() == pytest.approx([0, 0.005, 0.009, 0.02, 0.5, 1])
    assert share.tolist() == pytest.approx([100 * k / 6 for k in range(1, 7)])


def test_sparsity_belongs_to_discriminative_routing(run):
    other = small_run(4, routing="discriminative", options={"penalty": "l1"})
    data, _, caption = sparsity(other)
    assert set(data) == {"l1"}
    assert data["l1"]["small"] == 0  # all alike at the start
    other.layer().coefficients[::4] = 0.001 * other.layer().coefficients[0, 0]
    assert sparsity(other).data["l1"]["small"] == pytest.approx(25)
    assert "l1" in caption
    with pytest.raises(DoesNotApply, match="dynamic"):
        sparsity(run)


def test_borrowed_decoder_draws_the_other_models_capsules(tmp_path):
    run = small_run()
    run.batch = run.batch._replace(targets=run.output.scores.argmax(1))
    with pytest.raises(DoesNotApply, match="without a decoder"):
        borrowed_decoder(run)
    other = small_run(decoder=False).model
    shared = {k: x for k, x in run.model.state_dict().items() if not k.startswith("decoder")}
    shared["capsules.layers.0.weight"] = shared["capsules.layers.0.weight"] * 1.1  # other poses, the same answers
    other.load_state_dict(shared)
    save_weights(tmp_path / "last.safetensors", other, {})
    run.records = [{"folder": str(tmp_path)}]
    data, _, caption = borrowed_decoder(run)
    k = int(data["rows"][0])
    label = int(run.batch.targets[k])
    with torch.no_grad():
        pose = other.route(run.batch.inputs[k : k + 1]).pose
        masked = torch.zeros_like(pose)
        masked[0, label] = pose[0, label]
        expected = run.model.decoder.layers(masked.flatten(1)).view(run.model.image)
    torch.testing.assert_close(data["borrowed"][0], expected)
    assert not torch.equal(data["own"], data["borrowed"])
    assert "without any" in caption
