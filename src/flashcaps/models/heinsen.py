"""Capsules routed by net benefit to use and net cost to ignore (heinsen)."""

from ..nn.backbones import BACKBONES
from .network import Capsules
from .sentiment import Sentiment
from .specs import Dense, Primary, Route

HEINSEN = Route("heinsen", iterations=3)


def heinsen_smallnorb() -> Capsules:
    """heinsen, Fig. 3: stereo pairs, whole 96 x 96 images or any other size."""
    primary = Primary(types=64, dim=16, kernel=1, batch_norm=True)
    layers = (Dense(64, children="any"), Dense())
    return Capsules((2, 96, 96), 5, HEINSEN, BACKBONES["coordinates"], primary, layers, start="kaiming")


def heinsen_sst5() -> Sentiment:
    """heinsen, Fig. 5: sentiment in five grades, from the hidden states of a transformer."""
    return Sentiment(5, HEINSEN, layers=37, width=1280)


def heinsen_sst2() -> Sentiment:
    """heinsen, Fig. 5: sentiment, good or bad, from the hidden states of a transformer."""
    return Sentiment(2, HEINSEN, layers=37, width=1280)
