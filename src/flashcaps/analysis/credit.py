"""Which tokens and transformer layers a sentence's class capsule used (heinsen's credit assignment)."""

import torch
from torch import Tensor

from ..nn.trace import LayerTrace, presence
from .figure import DoesNotApply, Drawn, Run
from .inside import trace
from .style import bare, styled, subplots


@styled
def credit(run: Run, sentences: int = 3) -> Drawn:
    """Which tokens and transformer layers a sentence's class capsule used (heinsen)."""
    if run.model.image is not None:
        raise DoesNotApply("text is needed: hidden states of a transformer; this model reads images")
    batch = run.first(sentences)
    n, depth = batch.inputs.shape[1:3]
    scores = run.model(batch.inputs, batch.mask).scores
    answer = scores.argmax(1)
    shares = credit_of(trace(run, batch))  # (B, n * l, K)
    table = shares[torch.arange(len(answer)), :, answer].view(-1, n, depth)
    fig, axes = subplots(10, 2.5 * len(table) + 0.2, len(table), 1)
    said, words = [], []
    for k, axis in enumerate(axes):
        length = int(batch.mask[k].sum()) if batch.mask is not None else n
        tokens = run.tokens[k][:length] if run.tokens else [f"token {t + 1}" for t in range(length)]
        words.append(tokens)
        axis.imshow(table[k, :length].T.cpu().numpy(), cmap="cividis", aspect="auto", origin="lower")
        bare(axis)
        axis.set_xticks(range(length), [t.strip("ĠÂ ") or "·" for t in tokens], rotation=50, ha="right", fontsize=10)
        axis.set_yticks([0, depth - 1], ["first", "last"])
        label = run.class_name(int(batch.targets[k]))
        axis.set(ylabel="layer", title=f"answer {run.class_name(int(answer[k]))}, label {label}")
        best = int(table[k, :length].sum(1).argmax())
        layer = int(table[k].sum(0).argmax())
        token_share, layer_share = 100 * float(table[k, best].sum()), 100 * float(table[k, :, layer].sum())
        said.append(f"sentence {k + 1} uses “{tokens[best]}” most ({token_share:.0f} % of its credit; an even share is "
                    f"{100 / length:.0f} %) and layer {layer} ({layer_share:.0f} %; even: {100 / depth:.0f} %)")
    axes[-1].set_xlabel("token")
    text = f"Brighter is used more; {'; '.join(said)}."
    return Drawn({"credit": table, "tokens": words, "answer": answer}, fig, text)


def credit_of(layers: list[LayerTrace]) -> Tensor:
    """The share of each primary capsule in each class, presence times coupling through all layers: (B, I, K)."""
    total: Tensor | None = None
    for layer in layers:
        use = presence(layer).flatten(1)[..., None] * layer.steps[-1].coupling.abs()  # (B, I, J)
        use = use / use.sum(1, keepdim=True).clamp(min=1e-12)
        total = use if total is None else total @ use
    assert total is not None
    return total
