"""The animated picture of the README: made from the network and the digit that the page opens on."""

import re

from docs import animation


def test_the_stored_animation_tells_what_the_network_answers() -> None:
    stored = animation.FILE.read_text()
    assert len(stored) < 500_000
    assert not re.search(r"(href|src|url)\W", stored)  # a picture that needs nothing else
    found = animation.scene()
    said = re.findall(r"After iteration \d of \d: (\d)", stored)
    assert said == [str(int(a.argmax())) for a in found.activation]
    widths = [float(w) for w in re.findall(rf"--w{found.iterations - 1}:([\d.]+)", stored)]
    gains = found.gains[-1].clamp(min=0).flatten() / found.gains.abs().max()
    expected = (animation.HAIR + animation.THICK * gains).tolist()
    assert len(widths) == len(expected)
    assert max(abs(a - b) for a, b in zip(widths, expected, strict=True)) < 0.02
