"""Capsules routed by net benefit to use and net cost to ignore (heinsen)."""

from ..nn.backbones import BACKBONES
from .network import Capsules
from .sentiment import Sentiment
from .specs import Dense, Primary, Route

HEINSEN = Route("heinsen", iterations=3)
PRIMARY = Primary(types=64, dim=16, kernel=1, batch_norm=True)
LAYERS = (Dense(64, children="any"), Dense())
HIDDEN = "from the hidden states of a transformer"

MODELS: dict[str, Capsules | Sentiment] = {
    "heinsen_smallnorb": Capsules(
        (2, 96, 96), 5, HEINSEN, BACKBONES["coordinates"], PRIMARY, LAYERS, start="kaiming",
        about="heinsen, Fig. 3: stereo pairs, whole 96 x 96 images or any other size"),
    "heinsen_sst5": Sentiment(5, HEINSEN, about=f"heinsen, Fig. 5: sentiment in five grades, {HIDDEN}"),
    "heinsen_sst2": Sentiment(2, HEINSEN, about=f"heinsen, Fig. 5: sentiment, good or bad, {HIDDEN}"),
}  # fmt: skip
