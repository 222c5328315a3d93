"""Batch normalisation that begins where the teacher is: statistics of natural images, and the same answers."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from pwoa.training.groups import layers_with_statistics
from pwoa.training.stage import Material
from pwoa.training.validation import STATISTICS

_Norm = nn.BatchNorm1d | nn.BatchNorm2d


@torch.no_grad()
def refit(model: nn.Module, material: Material, batch: int, seed: int) -> None:
    """Take the statistics of batch normalisation anew; scale and shift move with them, so that the answers stay.

    Those of a robust network are of the adversarial examples that it was trained on, and natural images have others: in
    a ResNet-18 by TRADES the variances are about a tenth lower, and with them it loses five points under PGD-10. In
    training, where each batch has its own, a copy of the network would begin as that less robust one.
    """
    layers = [layer for layer in layers_with_statistics(model) if layer.affine and not _frozen(layer)]
    if not layers:
        return
    training = model.training
    model.eval()
    with _watching(layers) as seen:
        for x in _batches(material, batch, seed):
            model(x)
    for layer in layers:
        if layer in seen:
            _move(layer, torch.stack(seen[layer]).mean(0))
    model.train(training)


def _frozen(layer: nn.Module) -> bool:
    """Tell whether the user froze a part of a layer, which then stays."""
    return not all(parameter.requires_grad for parameter in layer.parameters())


def _batches(material: Material, batch: int, seed: int) -> Iterator[Tensor]:
    """Return some training images, augmented as in training."""
    generator = torch.Generator(material.train.device).manual_seed(seed)
    for index in torch.split(material.some(STATISTICS, batch), batch):
        yield material.augmented(index, generator)[0]


@contextmanager
def _watching(layers: list[_Norm]) -> Iterator[dict[nn.Module, list[Tensor]]]:
    """While inside, means and variances of what comes into each layer are noted, for each pass."""
    seen: dict[nn.Module, list[Tensor]] = {}

    def note(layer: nn.Module, given: tuple[Tensor, ...]) -> None:
        by_channel = given[0].double().transpose(0, 1).flatten(1)
        statistics = torch.stack([by_channel.mean(1), by_channel.var(1, correction=0)])
        seen.setdefault(layer, []).append(statistics)

    hooks = [layer.register_forward_pre_hook(note) for layer in layers]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def _move(layer: _Norm, statistics: Tensor) -> None:
    """Give a layer new statistics, and a scale and a shift with which it does what it did."""
    mean, variance = statistics
    old_mean, old_variance = layer.get_buffer("running_mean"), layer.get_buffer("running_var")
    old, new = (old_variance.double() + layer.eps).sqrt(), (variance + layer.eps).sqrt()
    scale, shift = layer.weight.double(), layer.bias.double()
    layer.bias.copy_(shift + scale * (mean - old_mean) / old)
    layer.weight.copy_(scale * new / old)
    old_mean.copy_(mean)
    old_variance.copy_(variance)
