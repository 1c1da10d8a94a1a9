"""Trees: what flows along their edges, against sums by hand; the moving one is a GIF that moves. Credit of tokens."""

import io

import pytest
import torch
from PIL import Image, ImageSequence

import flashcaps
from flashcaps.analysis import Run, animation, credit, parse_tree
from flashcaps.analysis.parse_tree import clear_row, credit_of, flow, grow, node_weights, strongest
from flashcaps.nn.trace import LayerTrace
from flashcaps.training.batches import Batch
from tests.analysis.conftest import small_run


@torch.no_grad()
def test_weights_of_a_dense_layer_are_coupling_times_length(run):
    top = run.trace(run.batch)[0]
    a, c = top.u[0].norm(dim=-1), top.steps[-1].coupling[0]
    t, h, w = a.shape
    by_place = node_weights(top, top.steps[-1])
    for y, x, j in ((0, 0, 0), (1, 0, 3), (h - 1, w - 1, 2)):
        expected = sum(a[k, y, x] * c[(k * h + y) * w + x, j] for k in range(t))
        torch.testing.assert_close(by_place[y * w + x, j], expected)
    whole = node_weights(top, top.steps[-1], whole=True)
    torch.testing.assert_close(whole[5, 1], a.flatten()[5] * c[5, 1])


@torch.no_grad()
@pytest.mark.parametrize("padding", [0, 1])
def test_weights_of_a_convolutional_layer_by_loops(padding):
    layer = flashcaps.ConvCapsules("em", in_types=2, in_dim=4, out_types=3, out_dim=4, kernel=3, stride=2,
                                   padding=padding)
    u, a = torch.randn(1, 2, 5, 5, 4), torch.rand(1, 2, 5, 5)
    out = layer(u, a, coupling=True, record=True)
    got = node_weights(LayerTrace(layer, u, a, out.history, out), out.history[-1])
    _, _, _, h, w = out.coupling.shape
    c = out.history[-1].coupling[0]
    expected = torch.zeros(25, h * w)
    for py in range(h):
        for px in range(w):
            for t in range(2):
                for ky in range(3):
                    for kx in range(3):
                        y, x = 2 * py + ky - padding, 2 * px + kx - padding
                        if 0 <= y < 5 and 0 <= x < 5:
                            use = c[(t * 3 + ky) * 3 + kx, :, py, px].sum() * a[0, t, y, x]
                            expected[y * 5 + x, py * w + px] += use
    torch.testing.assert_close(got, expected)


def test_flow_keeps_what_the_classes_get():
    weights = [torch.rand(2, 6, 4), torch.rand(2, 4, 3)]
    flows, share = flow(weights, [2, 0])
    for r, k in enumerate((2, 0)):
        expected = weights[1][:, :, k].sum(1) / weights[1].sum((1, 2))
        torch.testing.assert_close(share[:, r], expected)
        for f in flows:  # what reaches a class leaves the image
            torch.testing.assert_close(f[:, r].sum((1, 2)), expected)
    first = weights[0][0, 1, 3] / weights[0][0, :, 3].sum() * weights[1][0, 3, 2] / weights[1][0].sum()
    torch.testing.assert_close(flows[0][0, 0, 1, 3], first)


def test_strongest_edges_and_their_mass():
    flows = torch.zeros(2, 1, 3, 2)
    flows[1, 0, 2, 1], flows[0, 0, 0, 0] = 0.9, 0.5
    edges, mass = strongest(flows, limit=3)
    assert edges.tolist() == [[0, 2, 1], [0, 0, 0]]
    torch.testing.assert_close(mass, torch.tensor([[0.0, 0.5], [0.9, 0.0]]))


@torch.no_grad()
def test_tree_of_a_stack(run):
    tree = grow(run, 0)
    assert tree.share.shape == (3, 3)
    torch.testing.assert_close(tree.share[0], torch.full((3,), 0.25))  # four classes, nothing decided yet
    assert tree.roots == run.output.scores[0].topk(3).indices.tolist()
    deeper = small_run(4, hidden=[6])
    assert [len(x) for x in grow(deeper, 1).levels[1:]] == [6, 4]


def test_parse_tree_of_convolutional_capsules():
    model = flashcaps.create_model("attention_simple_cifar10", image=(3, 16, 20)).eval()  # wider than high
    images = torch.rand(2, 3, 16, 20)
    with torch.no_grad():
        labels = model(images).scores.argmax(1)
    data, figure, caption = parse_tree(Run(model, Batch(images, labels)))
    assert [len(level) for level in data["levels"]][-1] == 10
    assert len(figure.axes) == 2
    assert "%" in caption


def test_the_example_shown_is_right_and_close(run):
    row = clear_row(run)
    assert run.right[row]


def test_animation_moves(run):
    data, _, caption = animation(run, iterations=3, between=2)
    moving = Image.open(io.BytesIO(data["gif"]))
    shown = [(frame.convert("RGB").tobytes(), frame.info["duration"]) for frame in ImageSequence.Iterator(moving)]
    assert data["frames"] == 5
    assert sum(wait for _, wait in shown) == 900 + 90 + 900 + 90 + 2000  # of all five: frames that are equal become one
    assert shown[0][0] != shown[-1][0]
    assert "stops after 3" in caption


def sentences() -> Run:
    model = flashcaps.create_model("heinsen_sst2", layers=3, width=8).eval()
    mask = torch.tensor([[1.0, 1, 1, 1], [1, 1, 0, 0]])
    batch = Batch(torch.randn(2, 4, 3, 8), torch.tensor([0, 1]), mask=mask)
    return Run(model, batch, tokens=[["a", "good", "film", "."], ["bad", ".", "pad", "pad"]])


@torch.no_grad()
def test_credit_by_hand():
    run = sentences()
    layers = run.trace(run.batch)
    got = credit_of(layers)
    assert got.shape == (2, 12, run.model.classes)
    torch.testing.assert_close(got.sum(1), torch.ones(2, run.model.classes))
    low, top = (layer.steps[-1].coupling[0] for layer in layers)
    there = torch.sigmoid(layers[1].activation[0])
    use = there[:, None] * top
    expected = sum(low[5, p] / low[:, p].sum() * use[p, 1] / use[:, 1].sum() for p in range(len(there)))
    torch.testing.assert_close(got[0, 5, 1], expected)


def test_padding_gets_no_credit_and_words_are_named():
    data, figure, caption = credit(sentences())
    assert float(data["credit"][1, 2:].sum()) == 0
    assert data["tokens"][1] == ["bad", "."]
    assert [t.get_text() for t in figure.axes[0].get_xticklabels()] == ["a", "good", "film", "."]
    assert "sentence 2 uses" in caption
