"""Pose vectors as the viewpoint changes, on a made-up set of toys."""

import pytest
import torch

from flashcaps.analysis import Run
from flashcaps.analysis.viewpoints import changes, mds, pose_azimuth, pose_elevation, pose_trajectories, sequences
from flashcaps.data import Split, to_float
from tests.analysis.conftest import small_run


def toys(pose: str = "matrix") -> Run:
    run = small_run(2, routing="heinsen", pose=pose, primary={"dim": 16})
    rows = [(label, instance, e, a, light) for label in range(2) for instance in (0, 1) for e in range(3)
            for a in (0, 2, 4, 6) for light in (0, 1)]
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
    columns = torch.tensor(rows)[order].T
    names = ("instance", "elevation", "azimuth", "lighting")
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (len(rows), 1, 20, 20), dtype=torch.uint8, generator=generator)
    run.split = Split(images, columns[0], dict(zip(names, columns[1:], strict=True)))
    return run


def test_sequences_change_one_label_only():
    split = toys().split
    angles, rows = sequences(split, "azimuth", [(0, 0), (1, 1)])
    assert angles == [0, 20, 40, 60]
    for k, (label, instance) in enumerate(((0, 0), (1, 1))):
        assert split.labels[rows[k]].tolist() == [label] * 4
        assert split.info["instance"][rows[k]].tolist() == [instance] * 4
        assert split.info["azimuth"][rows[k]].tolist() == [0, 2, 4, 6]
        assert split.info["elevation"][rows[k]].tolist() == [1] * 4
    assert sequences(split, "elevation", [(0, 0)])[0] == [30, 35, 40]


def test_changes_of_a_rotation():
    angle = torch.tensor([0.0, 0.5, 1.0])
    poses = 3 * torch.stack([angle.cos(), angle.sin()], -1)[None, :, None]  # (1, 3, 1, 2)
    got = changes(poses)
    torch.testing.assert_close(got["norm"], torch.ones(1, 3, 1))
    torch.testing.assert_close(got["cosine"][0, :, 0], angle.cos())
    torch.testing.assert_close(got["distance"][0, :, 0], 2 * (angle / 2).sin(), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(("figure", "count"), [(pose_azimuth, 4), (pose_elevation, 3)])
def test_every_toy_is_a_line_in_three_by_four_panels(figure, count):
    run = toys()
    data, drawn, _ = figure(run)
    assert len(drawn.axes) == 12
    assert data["distance"].shape == (4, count, 4)
    assert len(drawn.axes[0].lines) == 4 + 1  # every toy, and the mean
    assert float(data["distance"][:, 0].abs().max()) == 0
    what = "azimuth" if figure is pose_azimuth else "elevation"
    _, rows = sequences(run.split, what, [data["toys"][2]])
    with torch.no_grad():
        pose = run.model(to_float(run.split.images[rows[0]])).routed.pose[:, data["toys"][2][0]].view(count, 4, 4)
    expected = (pose[-1, 1] - pose[0, 1]).norm() / pose[0, 1].norm()
    torch.testing.assert_close(data["distance"][2, -1, 1], expected, rtol=1e-3, atol=1e-5)


def test_vector_poses_are_one_vector():
    assert len(pose_azimuth(toys("vector")).figure.axes) == 3


def test_mds_gives_points_back_but_for_a_motion():
    points = torch.randn(7, 2, dtype=torch.float64)
    got = mds(torch.cdist(points, points))
    torch.testing.assert_close(torch.cdist(got, got), torch.cdist(points, points), atol=1e-6, rtol=1e-6)


def test_trajectories_of_one_toy():
    data, figure, caption = pose_trajectories(toys())
    assert data["azimuth"]["points"].shape == (4, 4, 2)
    assert data["elevation"]["points"].shape == (3, 4, 2)
    assert "% of all squared distances" in caption
    assert figure.axes[0].get_xlabel()
