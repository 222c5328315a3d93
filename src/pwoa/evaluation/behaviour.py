"""What a model does by itself, on natural images: checks that run no attack."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pwoa.attacks.ball import random_start
from pwoa.errors import InputError, first_line
from pwoa.evaluation.checks import Finding, look, some
from pwoa.guard import refuse_attack
from pwoa.models.border import LogitModel, not_logits
from pwoa.threat import Threat

REPEATS = 5
FLOAT_NOISE = 1e-3  # of the logits' spread, for the same kernels on the same batch
KERNEL_NOISE = 2e-2  # another batch size may take other kernels, and TF32 keeps three digits
VANISHED = 0.05
FEWER = 0.1  # what another preprocessing must gain


def check_modes(module: nn.Module) -> list[Finding]:
    """Check `train-mode`: whether a part of a model is in training mode although `eval()` has been called."""
    for name, part in module.named_modules():
        if part.training:
            where = f"{name!r} ({type(part).__name__})" if name else f"the model itself ({type(part).__name__})"
            return [
                Finding(
                    "train-mode",
                    f"{where} is still in training mode after eval(): dropout is random there and batch-norm mixes the "
                    "images of a batch, so the accuracy is not that of the model in use.",
                )
            ]
    return []


def check_behaviour(model: LogitModel, x: Tensor, labels: Tensor, *, differentiable: bool = True) -> list[Finding]:
    """Check a model's answers to natural images: is it random, does it depend on the batch, does it return
    probabilities, are its gradients zero, does it expect other pixels.

    `differentiable=False`, for a model that has no gradients and need not have any, leaves out that check.
    """
    if not len(x):
        return []
    chosen = some(torch.arange(len(x)), seed=0).to(x.device)
    x, labels = x[chosen], labels[chosen]
    logits = look(model, x)
    findings = _check_random(model, x, logits) or _check_batch(model, x, logits)
    findings += _check_probabilities(logits)
    if differentiable:
        findings += _check_gradients(model, x, labels, logits)
    return findings + _check_range(model, x, labels, logits)


def _check_random(model: LogitModel, x: Tensor, logits: Tensor) -> list[Finding]:
    difference = max(_difference(look(model, x), logits) for _ in range(REPEATS - 1))
    if not difference > FLOAT_NOISE:
        return []
    message = (
        "the same images give other logits from one call to the next (by up to "
        f"{100 * difference:.2g} % of their spread): random outputs make gradients noisy, so the accuracy under attack "
        "may be too high; attack the average over the randomness (EOT)."
    )
    return [Finding("randomised", message)]


def _check_batch(model: LogitModel, x: Tensor, logits: Tensor) -> list[Finding]:
    """Compare two images alone with the same two among all; one alone is more than some models can take."""
    if len(x) < 3:
        return []
    try:
        difference = _difference(look(model, x[:2]), logits[:2])
    except Exception:  # it may take batches of one size only
        return []
    if not difference > KERNEL_NOISE:
        return []
    message = (
        f"an image's logits depend on the other images of its batch (in a batch of 2 they differ by up to "
        f"{100 * difference:.2g} % of their spread from those in a batch of {len(x)}): it uses batch statistics, as in "
        "training mode, and its accuracy depends on the batch."
    )
    return [Finding("batch-dependent", message)]


def _difference(one: Tensor, other: Tensor) -> float:
    """Return the largest difference of two logits in units of how far, on average, an image's logits are spread."""
    spread = float((other.amax(1) - other.amin(1)).mean())
    difference = float((one - other).abs().max())
    return difference / spread if spread else difference


def _check_probabilities(logits: Tensor) -> list[Finding]:
    kind = not_logits(logits)
    if kind is None:
        return []
    message = (
        f"the model returns {kind}, not logits: losses on them saturate, so the accuracy under attack may be too high; "
        "let it return what comes before its last softmax."
    )
    return [Finding("probabilities", message)]


def _check_gradients(model: LogitModel, x: Tensor, labels: Tensor, logits: Tensor) -> list[Finding]:
    """Look for gradients at images that are right and at random points next to them."""
    refuse_attack("defence checks")
    right = logits.argmax(1) == labels
    near = random_start(x, Threat(), torch.Generator(x.device).manual_seed(0))
    consequence = (
        "attacks that follow it cannot work, so the accuracy under them is too high; attack a differentiable "
        "stand-in (BPDA), or without gradients (square)."
    )
    try:
        lost = right & (_without_gradient(model, x, labels) | _without_gradient(model, near, labels))
    except InputError:
        raise
    except Exception as error:  # it took the same images before, without gradients
        message = f"the loss has no gradient with respect to the image ({first_line(error)}): {consequence}"
        return [Finding("vanishing-gradients", message)]
    if not int(lost.sum()) > VANISHED * int(right.sum()):
        return []
    message = (
        f"the gradient of the loss with respect to the image is zero or not finite for {int(lost.sum())} of "
        f"{int(right.sum())} images: {consequence}"
    )
    return [Finding("vanishing-gradients", message)]


def _without_gradient(model: LogitModel, x: Tensor, labels: Tensor) -> Tensor:
    """Tell for each image whether the gradient of its cross-entropy is zero or not finite."""
    with torch.enable_grad():
        at = x.detach().requires_grad_()
        loss = F.cross_entropy(model(at).float(), labels, reduction="sum")
        (gradient,) = torch.autograd.grad(loss, at, allow_unused=True) if loss.requires_grad else (None,)
    if gradient is None:
        return torch.ones_like(labels, dtype=torch.bool)
    gradient = gradient.flatten(1)
    return (gradient == 0).all(1) | ~torch.isfinite(gradient).all(1)


def _check_range(model: LogitModel, x: Tensor, labels: Tensor, logits: Tensor) -> list[Finding]:
    right = logits.argmax(1) == labels
    gains = {name: _gain(model, images, labels, right) for name, images in _other_pixels(x).items()}
    name, gain = max(gains.items(), key=lambda item: item[1])
    if gain < FEWER * len(x):
        return []
    now = 100 * float(right.float().mean())
    message = (
        f"{now:.1f} % of {len(x)} natural images are right, but {now + 100 * gain / len(x):.1f} % when {name}: "
        "the model seems to expect other pixels than [0, 1], and the accuracy is not that of the model as trained; "
        "give its normalisation as --mean and --std (in Python: mean=, std=), or check the preprocessing."
    )
    return [Finding("input-range", message)]


def _other_pixels(x: Tensor) -> dict[str, Tensor]:
    over = (0, *range(2, x.dim()))
    mean, std = x.mean(over, keepdim=True), x.std(over, keepdim=True).clamp_min(1e-6)
    return {
        "multiplied by 255": x * 255,
        "scaled to [-1, 1]": (x - 0.5) / 0.5,
        "standardised by the mean and deviation of each channel": (x - mean) / std,
    }


def _gain(model: LogitModel, x: Tensor, labels: Tensor, right: Tensor) -> int:
    """Return how many images more are right as `x`; 0 within noise, and where the model does not take such images."""
    try:
        now = look(model, x).argmax(1) == labels
    except Exception:  # images outside [0, 1] are no plain input
        return 0
    won, lost = int((now & ~right).sum()), int((right & ~now).sum())
    return won - lost if won - lost > 3 * math.sqrt(won + lost) else 0
