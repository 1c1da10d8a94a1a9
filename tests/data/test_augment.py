import pytest
import torch
import torch.nn.functional as F

from flashcaps.data import augment, make_generator


@pytest.fixture(params=[torch.uint8, torch.float32])
def images(request):
    x = torch.arange(1, 1 + 6 * 2 * 8 * 10).view(6, 2, 8, 10)
    return (x % 255 + 1).to(torch.uint8) if request.param == torch.uint8 else x / 1000


def test_window_is_the_slice_of_the_padded_image(images):
    corners = torch.tensor([[0, 0], [-3, 2], [4, -5], [1, 1], [-20, 0], [7, 9]])
    out = augment.window(images, corners, (5, 6))
    padded = F.pad(images, (20, 20, 20, 20))
    for b, (top, left) in enumerate(corners.tolist()):
        assert torch.equal(out[b], padded[b, :, 20 + top : 25 + top, 20 + left : 26 + left])
    assert out.dtype == images.dtype


def test_shift_moves_down_and_right_with_zeros_moving_in(images):
    offsets = torch.tensor([[1, 2]]).expand(6, 2)
    out = augment.shift(images, offsets)
    assert torch.equal(out[:, :, 1:, 2:], images[:, :, :-1, :-2])
    assert out[:, :, 0].sum() == 0
    assert out[:, :, :, :2].sum() == 0


def test_random_crop_is_a_window_of_the_padded_image(images):
    fixed = augment.random_crop(images, (4, 4), 1, torch.tensor([[1, 1]] * 6))
    assert torch.equal(fixed, images[:, :, :4, :4])
    with pytest.raises(ValueError, match=r"size: expected at most 10 x 12 \(the image and padding 1\), got \(11, 11\)"):
        augment.random_crop(images, 11, 1, torch.zeros(6, 2, dtype=torch.int64))


def test_center_crop_in_and_out(images):
    assert torch.equal(augment.center_crop(images, 4), images[:, :, 2:6, 3:7])
    out = augment.center_crop(images, (12, 14))
    assert torch.equal(out[:, :, 2:10, 2:12], images)
    assert torch.equal(augment.center_crop(out, (8, 10)), images)


def test_flip_mirrors_those_it_is_told_to(images):
    mask = torch.tensor([True, False, True, False, False, True])
    out = augment.flip(images, mask)
    assert torch.equal(out[mask], images[mask].flip(-1))
    assert torch.equal(out[~mask], images[~mask])


def test_brightness_contrast_follows_its_formula():
    x = torch.rand(4, 2, 6, 6, generator=make_generator(3)) * 0.2 + 0.4
    amounts = torch.tensor([[0.5, 0.5], [1, 0.5], [0.5, 1], [0, 0]])
    out = augment.brightness_contrast(x, 0.1, (0.5, 1.5), amounts)
    mean = x.mean((2, 3), keepdim=True)
    torch.testing.assert_close(out[0], x[0])
    torch.testing.assert_close(out[1], x[1] + 0.1)
    torch.testing.assert_close(out[2], (x[2] - mean[2]) * 1.5 + mean[2])
    torch.testing.assert_close(out[3], (x[3] - mean[3]) * 0.5 + mean[3] - 0.1)
    pixels = torch.randint(256, (50, 1, 6, 6), dtype=torch.uint8)
    amounts = torch.rand(50, 2)
    wild, free = (augment.brightness_contrast(pixels, 0.5, (0.5, 1.5), amounts, clip) for clip in (True, False))
    assert wild.min() >= 0
    assert wild.max() <= 1
    assert torch.equal(free.clamp(0, 1), wild)
    assert not torch.equal(free, wild)


def test_cutout_blanks_one_square():
    x = torch.rand(3, 2, 6, 8)
    out = augment.cutout(x, 3, torch.tensor([[0.5, 0.5], [0.0, 0.999], [0.999, 0.0]]))
    mean = x.mean((2, 3))
    squares = [(slice(2, 5), slice(3, 6)), (slice(0, 2), slice(6, 8)), (slice(4, 6), slice(0, 2))]
    for b, (rows, columns) in enumerate(squares):
        expected = x[b].clone()
        expected[:, rows, columns] = mean[b][:, None, None]
        torch.testing.assert_close(out[b], expected)
    with pytest.raises(ValueError, match="side"):
        augment.cutout(x, 0, torch.zeros(3, 2))


def test_mix_takes_a_share_of_each():
    x = torch.rand(64, 1, 4, 4, generator=make_generator(5))
    weight, partner = augment.mixup_weights(64, 0.2, make_generator(6)), torch.randperm(64)
    mixed = augment.mix(x, weight, partner)
    for b in (0, 17, 63):
        torch.testing.assert_close(mixed[b], weight[b] * x[b] + (1 - weight[b]) * x[partner[b]])
    torch.testing.assert_close(augment.mix(torch.eye(64), weight, partner).sum(1), torch.ones(64))
    with pytest.raises(ValueError, match="alpha: expected more than 0, got 0"):
        augment.mixup_weights(4, 0, make_generator(0))


def test_mixup_weights_are_beta_distributed():
    weight = augment.mixup_weights(50_000, 0.2, make_generator(7))
    assert weight.mean().item() == pytest.approx(0.5, abs=0.01)
    assert weight.var().item() == pytest.approx(1 / (4 * (2 * 0.2 + 1)), abs=0.005)
    again = augment.mixup_weights(50_000, 0.2, make_generator(7))
    assert torch.equal(weight, again)


def test_resize_averages_down_and_keeps_the_type(images):
    out = augment.resize(images, (4, 5))
    mean = images.float().view(6, 2, 4, 2, 5, 2).mean((3, 5))
    assert out.dtype == images.dtype
    assert (out - mean).abs().max() <= (0.5 if images.dtype == torch.uint8 else 1e-6)
    assert augment.resize(images, 16).shape == (6, 2, 16, 16)


@pytest.mark.gpu
def test_on_the_device_without_waiting():
    images, u = torch.rand(64, 3, 32, 32, device="cuda"), torch.rand(64, 2, device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        x = augment.shift(images, (u * 5).long() - 2)
        x = augment.random_crop(x, 32, 4, (u * 9).long())
        x = augment.flip(x, u[:, 0] < 0.5)
        x = augment.brightness_contrast(x, 0.1, (0.5, 1.5), u)
        x = augment.mix(augment.cutout(x, 8, u), u[:, 0], u[:, 1].argsort())
        x = augment.resize(augment.center_crop(x, 24), 12)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert x.shape == (64, 3, 12, 12)
