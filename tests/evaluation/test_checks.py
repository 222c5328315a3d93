from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

import pwoa
from pwoa.attacks.apgd import apgd_ce
from pwoa.attacks.gradient import cw, pgd
from pwoa.data.images import Data
from pwoa.errors import InputError
from pwoa.evaluation import checks
from pwoa.evaluation.behaviour import check_behaviour, check_modes
from pwoa.evaluation.checks import Finding, check_attacks, check_curve
from pwoa.guard import ExampleFreeViolation, example_free
from pwoa.models.border import not_logits
from pwoa.threat import Threat

THREAT = Threat(radius=0.05, step=0.0125)

Model = Callable[[Tensor], Tensor]
Batch = tuple[Tensor, Tensor]


@pytest.fixture
def batch(tiny_data: Data) -> Batch:
    return tiny_data.test.batch(torch.arange(48))


@pytest.fixture
def net(tiny_teacher: nn.Module) -> nn.Module:
    return tiny_teacher.requires_grad_(False)


def names(found: list[Finding]) -> list[str]:
    return [finding.check for finding in found]


def quantised(x: Tensor) -> Tensor:
    return (x * 3).round() / 3


def detached(net: nn.Module) -> Model:
    return lambda x: cast(Tensor, net(x.detach()))


def linear() -> tuple[nn.Sequential, Tensor, Tensor]:
    """Class 1 where the mean of the four pixels is above 0.5, and 60 images at a distance of 0.1 to 0.2 from there."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    layer = cast(nn.Linear, model[1])
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[-1.0], [1.0]]).expand(2, 4))
        layer.bias.copy_(torch.tensor([2.0, -2.0]))
    labels = torch.arange(60) % 2
    distance = torch.linspace(0.1, 0.2, 60) * (2 * labels - 1)
    x = (0.5 + distance).view(-1, 1, 1, 1).expand(-1, 1, 2, 2).contiguous()
    return model.requires_grad_(False), x, labels


def verdict(model: Model, x: Tensor, labels: Tensor) -> Tensor:
    return model(x).argmax(1) == labels


def measured(model: Model, x: Tensor, labels: Tensor, threat: Threat, **attacks: Any) -> dict[str, Tensor]:
    """What an evaluation would hand over."""
    natural = verdict(model, x, labels)
    generator = torch.Generator().manual_seed(1)
    found = {
        name.replace("_", "-"): natural & verdict(model, attack(model, x, labels, threat, generator=generator), labels)
        for name, attack in attacks.items()
    }
    return {"natural": natural, **found}


# The model's answers


def test_nothing_is_wrong_with_the_tiny_teacher(net: nn.Module, batch: Batch) -> None:
    assert check_behaviour(net, *batch) == []
    assert check_modes(net) == []


def test_nothing_is_wrong_with_a_linear_model() -> None:
    model, x, labels = linear()
    assert check_behaviour(model, x, labels) == []


def test_nothing_is_wrong_with_the_embedded_lenet() -> None:
    data = pwoa.load_data("mnist-mini")
    model = pwoa.load_model("embedded", data)
    assert check_modes(model) == []
    assert check_behaviour(model, *data.test.batch(torch.arange(200))) == []


@pytest.mark.parametrize(
    ("broken", "expected", "words"),
    [
        (detached, "vanishing-gradients", "48 of 48 images"),
        (lambda net: lambda x: net(x.detach()) + 0 * x.sum(), "vanishing-gradients", "48 of 48 images"),
        (lambda net: lambda x: net(quantised(x)), "vanishing-gradients", "48 of 48 images"),
        (lambda net: lambda x: 1e4 * net(x), "vanishing-gradients", "of 48 images"),
        (lambda net: lambda x: net(torch.tensor(x.numpy())), "vanishing-gradients", "Can't call numpy()"),
        (lambda net: lambda x: net(x + 0.02 * torch.randn_like(x)), "randomised", "EOT"),
        (lambda net: lambda x: net(x).softmax(1), "probabilities", "returns probabilities, not logits"),
        (lambda net: lambda x: net(x).log_softmax(1), "probabilities", "returns log-probabilities, not logits"),
        (lambda net: net.train(), "batch-dependent", "in a batch of 2 they differ"),
        (lambda net: lambda x: net(x / 255), "input-range", "100.0 % when multiplied by 255"),
    ],
)
def test_each_broken_model_is_found_out_and_for_nothing_else(
    broken: Callable[[nn.Module], Model], expected: str, words: str, net: nn.Module, batch: Batch
) -> None:
    torch.manual_seed(0)
    found = check_behaviour(broken(net), *batch)
    assert names(found) == [expected]
    assert words in found[0].message
    assert "\n" not in found[0].message
    assert "accuracy" in found[0].message


def ends(images: Tensor) -> tuple[Tensor, Tensor]:
    """The darkest and the brightest pixel of each image."""
    return images.amin((1, 2, 3))[:, None], images.amax((1, 2, 3))[:, None]


def test_the_preprocessing_that_would_help_is_named(net: nn.Module, batch: Batch) -> None:
    """Models that turn their answers round where the pixels are not in the range they expect."""
    x, labels = batch
    mean, std = x.mean(), x.std()

    def halved(pixels: Tensor) -> Tensor:
        (low, high), logits = ends(pixels), net((pixels + 1) / 2)
        return torch.where((low < -0.4) & (high < 1), logits, -logits)

    def standard(pixels: Tensor) -> Tensor:
        (low, high), logits = ends(pixels), net(pixels * std + mean)
        return torch.where((low < 0) & (high > 1), logits, -logits)

    for model, name in ((halved, "scaled to [-1, 1]"), (standard, "standardised by the mean and deviation")):
        found = check_behaviour(model, x, labels)
        assert names(found) == ["input-range"]
        assert f"0.0 % of 48 natural images are right, but 100.0 % when {name}" in found[0].message
        assert "--mean and --std (in Python: mean=, std=)" in found[0].message


def test_few_images_are_not_enough_to_doubt_the_preprocessing(net: nn.Module, batch: Batch) -> None:
    x, labels = batch
    wrong = (labels != net(x / 255).argmax(1)).nonzero().flatten()
    assert names(check_behaviour(lambda x: net(x / 255), x[wrong[:4]], labels[wrong[:4]])) == []
    assert names(check_behaviour(lambda x: net(x / 255), x[wrong[:12]], labels[wrong[:12]])) == ["input-range"]


def test_a_model_may_refuse_other_pixels(net: nn.Module, batch: Batch) -> None:
    def strict(x: Tensor) -> Tensor:
        if bool((x > 1).any()) or bool((x < 0).any()):
            raise ValueError("not an image")
        return cast(Tensor, net(x))

    assert check_behaviour(strict, *batch) == []


def test_a_model_may_take_only_batches_of_one_size(net: nn.Module, batch: Batch) -> None:
    def fixed(x: Tensor) -> Tensor:
        return cast(Tensor, net(x.view(48, 1, 6, 6)))

    assert check_behaviour(fixed, *batch) == []


def test_a_model_that_fails_on_plain_images_is_not_covered_up(batch: Batch) -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        check_behaviour(nn.Sequential(nn.Flatten(), nn.Linear(5, 3)), *batch)


def flat_at(net: nn.Module, images: Tensor, elsewhere: bool = False) -> Model:
    """The network with no gradient at some images, or else at all but those."""
    sums = images.flatten(1).sum(1)

    def model(at: Tensor) -> Tensor:
        near = (at.flatten(1).sum(1)[:, None] - sums).abs().amin(1) < 1e-6
        return torch.where((near ^ elsewhere)[:, None], net(at.detach()), net(at))

    return model


def test_a_gradient_that_vanishes_for_few_images_is_no_finding(net: nn.Module, batch: Batch) -> None:
    x, labels = batch
    assert bool(verdict(net, x, labels).all())
    assert check_behaviour(flat_at(net, x[:2]), x, labels) == []
    found = check_behaviour(flat_at(net, x[:3]), x, labels)
    assert names(found) == ["vanishing-gradients"]
    assert "for 3 of 48 images" in found[0].message


def test_only_the_gradients_of_right_images_count(net: nn.Module, batch: Batch) -> None:
    x, labels = batch
    wrong = torch.cat([(labels[:9] + 1) % 3, labels[9:]])
    assert check_behaviour(flat_at(net, x[:9]), x, wrong) == []
    assert "for 3 of 39 images" in check_behaviour(flat_at(net, x[:12]), x, wrong)[0].message


def test_a_gradient_at_the_natural_image_alone_is_not_enough(net: nn.Module, batch: Batch) -> None:
    assert names(check_behaviour(flat_at(net, batch[0], elsewhere=True), *batch)) == ["vanishing-gradients"]


def test_gradients_that_are_not_finite_count(net: nn.Module, batch: Batch) -> None:
    """The root's gradient at 0 is infinite, times 0: NaN."""
    found = check_behaviour(lambda x: net(x) + 0 * (x - x).sqrt().flatten(1).sum(1, keepdim=True), *batch)
    assert names(found) == ["vanishing-gradients"]


def test_a_model_without_gradients_by_nature_is_not_blamed(net: nn.Module, batch: Batch) -> None:
    assert check_behaviour(detached(net), *batch, differentiable=False) == []


def test_float_noise_is_no_randomness(net: nn.Module, batch: Batch) -> None:
    def noisy(scale: float) -> Model:
        return lambda x: (logits := net(x)) + scale * logits.detach().std() * (2 * torch.rand_like(logits) - 1)

    assert check_behaviour(noisy(1e-4), *batch) == []
    assert names(check_behaviour(noisy(1e-1), *batch)) == ["randomised"]


def test_it_looks_at_no_more_than_100_images(net: nn.Module, batch: Batch) -> None:
    x, labels = batch
    seen: list[int] = []

    def watched(at: Tensor) -> Tensor:
        seen.append(len(at))
        return cast(Tensor, net(at))

    assert check_behaviour(watched, x.repeat(5, 1, 1, 1), labels.repeat(5)) == []
    assert max(seen) == checks.IMAGES
    assert sum(seen) <= 11 * checks.IMAGES


def test_all_classes_are_looked_at_also_in_sorted_data(net: nn.Module, batch: Batch) -> None:
    """Of 244 images the first 100 are black, which tells nothing."""
    x, labels = batch
    sorted_x = torch.cat([torch.zeros(100, 1, 6, 6), x, x, x])
    sorted_labels = torch.cat([torch.zeros(100, dtype=torch.int64), labels, labels, labels])
    assert names(check_behaviour(lambda at: net(at / 255), sorted_x, sorted_labels)) == ["input-range"]


def test_no_images_no_findings(net: nn.Module, batch: Batch) -> None:
    assert check_behaviour(net, batch[0][:0], batch[1][:0]) == []


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([[0.2, 0.8], [1.0, 0.0]], "probabilities"),
        ([[0.2, 0.8], [1.0, 0.1]], None),
        ([[1.2, -0.2], [0.5, 0.5]], None),
        ([[-0.6931472, -0.6931472]], "log-probabilities"),
        ([[-0.6931472, -0.5]], None),
    ],
)
def test_what_outputs_look_like(rows: list[list[float]], expected: str | None) -> None:
    assert not_logits(torch.tensor(rows)) == expected


class Stubborn(nn.Module):
    """Its own train() and eval() leave a part of it alone."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 2)
        self.norm = nn.BatchNorm1d(2)
        self.last = nn.Dropout()

    def train(self, mode: bool = True) -> Stubborn:
        self.training = mode
        self.first.train(mode)
        return self


def test_a_part_left_in_training_mode_is_named() -> None:
    found = check_modes(nn.Sequential(Stubborn()).eval())
    assert names(found) == ["train-mode"]
    assert "'0.norm' (BatchNorm1d) is still in training mode after eval()" in found[0].message


def test_the_whole_model_left_in_training_mode_is_named() -> None:
    found = check_modes(nn.Linear(2, 2).train())
    assert "the model itself (Linear)" in found[0].message


# What attacks found


def test_nothing_is_found_where_the_attack_was_the_best_one() -> None:
    """pgd10 crosses the ball of a linear model: what it leaves, nothing breaks."""
    model, x, labels = linear()
    threat = Threat(radius=0.15, step=0.03)
    right = measured(model, x, labels, threat, pgd10=partial(pgd, steps=10), cw5=partial(cw, steps=5))
    assert int(right["pgd10"].sum()) == 30
    assert check_attacks(model, x, labels, threat, right) == []


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_nothing_is_found_for_a_network_and_a_fair_attack(norm: str, net: nn.Module, batch: Batch) -> None:
    threat = Threat(norm=norm, radius=0.1, step=0.025)
    right = measured(net, *batch, threat, pgd20=partial(pgd, steps=20))
    assert int(right["pgd20"].sum()) > 20
    assert check_attacks(net, *batch, threat, right) == []


@pytest.mark.parametrize(
    ("attack", "words"),
    [
        ("pgd2", "pgd2 with 5 times the steps breaks 60 of 60"),
        ("cw3", "cw3 with 5 times the steps breaks 60 of 60"),
        ("apgd-ce", "apgd-ce with 500 steps breaks 60 of 60"),
        ("autoattack", "apgd-ce with 500 steps breaks 60 of 60"),
    ],
)
def test_a_weak_attack_is_found_out_by_more_steps(attack: str, words: str) -> None:
    model, x, labels = linear()
    right = dict.fromkeys(("natural", attack, "square"), verdict(model, x, labels))
    found = check_attacks(model, x, labels, Threat(radius=0.25, step=0.05), right)
    assert names(found) == ["more-iterations"]
    assert found[0].message.startswith(words)
    assert "nearer 0.0 than 100.0 %" in found[0].message


def test_the_longest_attack_is_made_longer_and_the_estimate_is_that_of_all_images() -> None:
    """Half of the images are wrong anyway; 10 steps of 0.03 cross the ball of 0.15, which breaks half of the others."""
    model, x, labels = linear()
    x, labels = x.repeat(2, 1, 1, 1), torch.cat([labels, 1 - labels])
    threat = Threat(radius=0.15, step=0.03)
    claimed = verdict(model, x, labels)
    right = {"natural": claimed, "pgd1": claimed, "pgd2": claimed, "square": claimed}
    found = check_attacks(model, x, labels, threat, right)
    assert [finding.message for finding in found] == [
        "pgd2 with 5 times the steps breaks 30 of 60 images that survived every attack; "
        "the accuracy may be nearer 25.0 than 50.0 %."
    ]


def test_the_longer_attack_has_the_loss_of_the_shorter_one() -> None:
    """Where cross-entropy is saturated, the margin still shows the way; only a random start can help the other."""
    model, x, labels = linear()

    def message(attack: str) -> str:
        right = dict.fromkeys(("natural", attack, "square"), torch.ones(60, dtype=torch.bool))
        found = check_attacks(lambda x: 1e4 * model(x), x, labels, Threat(radius=0.25, step=0.05), right)
        assert names(found) == ["more-iterations", "radius"]
        return found[0].message

    assert "cw2 with 5 times the steps breaks 60 of 60" in message("cw2")
    assert "breaks 60 of 60" not in message("pgd2")


def test_one_broken_image_is_no_finding() -> None:
    model, x, labels = linear()
    right = dict.fromkeys(("natural", "pgd2", "square"), torch.ones(60, dtype=torch.bool))
    order = x.flatten(1).mean(1).sub(0.5).abs().argsort()  # nearest to the boundary first
    x, labels = x[order], labels[order]

    def found(breakable: int) -> list[str]:
        radius = float((x[breakable - 1].mean() - 0.5).abs()) + 1e-4
        return names(check_attacks(model, x, labels, Threat(radius=radius, step=0.05), right))

    assert found(1) == []
    assert found(2) == ["more-iterations"]


def test_masked_gradients_show_in_square_and_at_a_wide_radius(net: nn.Module, batch: Batch) -> None:
    def masked(x: Tensor) -> Tensor:
        return cast(Tensor, net(quantised(x)))

    threat = Threat(radius=0.3, step=0.05)
    right = measured(masked, *batch, threat, pgd10=partial(pgd, steps=10))
    found = check_attacks(masked, *batch, threat, right)
    assert names(found) == ["black-box", "radius"]
    assert "square-paper with 200 queries, which uses no gradients, breaks" in found[0].message
    assert "pgd50 at l∞ 0.5" in found[1].message


def test_saturated_logits_show_at_a_wide_radius(net: nn.Module, batch: Batch) -> None:
    def saturated(x: Tensor) -> Tensor:
        return cast(Tensor, 1e4 * net(x))

    right = measured(saturated, *batch, THREAT, apgd_ce=partial(apgd_ce, steps=10))
    assert "radius" in names(check_attacks(saturated, *batch, THREAT, {**right, "square": right["natural"]}))


def test_a_model_that_cannot_be_differentiated_crashes_nothing_and_is_not_passed(net: nn.Module, batch: Batch) -> None:
    right = dict.fromkeys(("natural", "pgd10", "square"), verdict(net, *batch))
    found = check_attacks(detached(net), *batch, THREAT, right)
    assert names(found) == ["more-iterations", "radius"]
    assert all("cannot be run (" in finding.message for finding in found)
    assert check_attacks(detached(net), *batch, THREAT, right, differentiable=False) == []


def test_a_model_that_fails_on_plain_images_fails_here_too(batch: Batch) -> None:
    right = dict.fromkeys(("natural", "pgd10"), torch.ones(48, dtype=torch.bool))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        check_attacks(nn.Sequential(nn.Flatten(), nn.Linear(5, 3)), *batch, THREAT, right)


def test_a_models_own_input_errors_are_passed_on(batch: Batch) -> None:
    def refuses(x: Tensor) -> Tensor:
        raise InputError("no images like these")

    right = dict.fromkeys(("natural", "pgd10"), torch.ones(48, dtype=torch.bool))
    with pytest.raises(InputError, match="no images like these"):
        check_attacks(refuses, *batch, THREAT, right)


def test_input_errors_of_a_model_that_refuses_gradients_are_passed_on(net: nn.Module, batch: Batch) -> None:
    def refuses(x: Tensor) -> Tensor:
        if x.requires_grad:
            raise InputError("this model gives no gradients")
        return cast(Tensor, net(x))

    right = dict.fromkeys(("natural", "pgd10"), verdict(net, *batch))
    with pytest.raises(InputError, match="gives no gradients"):
        check_attacks(refuses, *batch, THREAT, right)
    with pytest.raises(InputError, match="gives no gradients"):
        check_behaviour(refuses, *batch)
    assert check_attacks(refuses, *batch, THREAT, right, differentiable=False) == []
    assert check_behaviour(refuses, *batch, differentiable=False) == []


def survivors(n: int, broken: int) -> Tensor:
    return torch.arange(n) >= broken


def unused(x: Tensor) -> Tensor:
    raise AssertionError("measured results are enough")


@pytest.mark.parametrize(("broken", "expected"), [(40, []), (44, []), (45, []), (46, ["black-box"])])
def test_square_within_autoattack_breaks_what_its_gradient_attacks_did_not(broken: int, expected: list[str]) -> None:
    """Half a point of 1000 images are 5: it takes more."""
    n = 1000
    components = ("apgd-ce", "apgd-t", "fab-t")
    after = {**dict.fromkeys(components, survivors(n, 40)), "square": survivors(n, broken)}
    right = {"natural": survivors(n, 10), "autoattack": after["square"]}
    x = torch.zeros(n, 1, 2, 2)
    found = check_attacks(
        constant, x, torch.zeros(n, dtype=torch.int64), THREAT, right, after=after, differentiable=False
    )
    assert names(found) == expected
    if expected:
        assert "square breaks 6 of 960 images" in found[0].message
        assert "at most 95.4 %, not 96.0 %" in found[0].message


def constant(x: Tensor) -> Tensor:
    return torch.tensor([1.0, 0.0]).expand(len(x), 2)


@pytest.mark.parametrize("name", ["square", "square-paper", "transfer"])
def test_a_black_box_attack_of_its_own_breaks_what_gradient_attacks_did_not(name: str) -> None:
    right = {"natural": survivors(50, 0), "pgd20": survivors(50, 10), "cw": survivors(50, 12), name: survivors(50, 20)}
    x, labels = torch.zeros(50, 1, 2, 2), torch.zeros(50, dtype=torch.int64)
    run = partial(check_attacks, constant, x, labels, THREAT, differentiable=False)
    found = run(right)
    assert names(found) == ["black-box"]
    assert found[0].message.startswith(f"{name} breaks 8 of 38 images that survived")
    assert run({**right, name: survivors(50, 13)}) == []
    assert run({**right, name: survivors(50, 5)}) == []


def test_square_alone_is_compared_with_nothing() -> None:
    x, labels = torch.zeros(50, 1, 2, 2), torch.zeros(50, dtype=torch.int64)
    right = {"natural": survivors(50, 0), "square": survivors(50, 30)}
    assert check_attacks(constant, x, labels, THREAT, right) == []


@pytest.mark.parametrize(
    ("results", "tried"),
    [(["pgd2"], True), (["pgd2", "square"], False), (["pgd2", "square-paper"], False), (["autoattack"], False)],
)
def test_a_short_square_is_run_only_where_no_square_was(results: list[str], tried: bool) -> None:
    model, x, labels = linear()
    right = dict.fromkeys(["natural", *results], torch.ones(60, dtype=torch.bool))
    found = check_attacks(model, x, labels, Threat(radius=0.25, step=0.05), right, differentiable=False)
    assert names(found) == ["black-box"] * tried


def test_the_windows_of_the_short_square_become_single_pixels() -> None:
    seen: list[Tensor] = []

    def stubborn(x: Tensor) -> Tensor:
        seen.append(x.clone())
        return constant(x)

    x, labels = torch.full((8, 1, 16, 16), 0.5), torch.zeros(8, dtype=torch.int64)
    right = dict.fromkeys(("natural", "pgd2"), torch.ones(8, dtype=torch.bool))
    assert check_attacks(stubborn, x, labels, THREAT, right, differentiable=False) == []
    start = seen[-1]  # no window does any harm
    changed = [int((tried != start).sum((1, 2, 3)).max()) for tried in seen if len(tried) == 8]
    assert min(pixels for pixels in changed if pixels) == 1


def test_without_an_attack_there_is_nothing_to_check() -> None:
    x, labels = torch.zeros(5, 1, 2, 2), torch.zeros(5, dtype=torch.int64)
    assert check_attacks(unused, x, labels, THREAT, {"natural": survivors(5, 0)}) == []
    assert check_attacks(unused, x, labels, THREAT, {}) == []


def test_without_survivors_nothing_is_run() -> None:
    x, labels = torch.zeros(5, 1, 2, 2), torch.zeros(5, dtype=torch.int64)
    right = {"natural": survivors(5, 0), "pgd20": survivors(5, 5)}
    assert check_attacks(unused, x, labels, THREAT, right) == []
    after = {"apgd-ce": survivors(5, 3), "apgd-t": survivors(5, 5)}
    assert check_attacks(unused, x, labels, THREAT, {"natural": survivors(5, 0)}, after=after) == []


def test_the_same_seed_gives_the_same_findings(net: nn.Module, batch: Batch) -> None:
    right = dict.fromkeys(("natural", "pgd1", "square"), verdict(net, *batch))
    threat = Threat(radius=0.3, step=0.05)
    first, second = (check_attacks(net, *batch, threat, right, seed=3) for _ in range(2))
    assert first == second
    assert "more-iterations" in names(first)


def test_no_check_makes_examples_in_an_example_free_run(net: nn.Module, batch: Batch) -> None:
    right = dict.fromkeys(("natural", "pgd1"), verdict(net, *batch))
    with example_free(), pytest.raises(ExampleFreeViolation, match="defence checks"):
        check_attacks(net, *batch, THREAT, right)
    with example_free(), pytest.raises(ExampleFreeViolation, match="defence checks"):
        check_behaviour(net, *batch)


# Curves


def test_a_falling_curve_is_as_it_should_be() -> None:
    assert check_curve([0, 0.1, 0.2], {"pgd20": [99.0, 50.0, 50.0], "fgsm": [99.0, 90.0, 0.0]}, 1000) == []


def test_a_curve_that_grows_is_named_with_its_numbers_whatever_the_order_of_radii() -> None:
    found = check_curve([0.3, 0.1, 0.2], {"pgd20": [1.0, 60.0, 30.0], "fgsm": [40.0, 50.0, 20.0]}, 1000)
    assert names(found) == ["radius"]
    assert found[0].message.startswith("fgsm: the accuracy grows from 20.0 % at radius 0.2 to 40.0 % at 0.3")


@pytest.mark.parametrize(("n", "expected"), [(100, []), (1000, []), (5000, ["radius"])])
def test_growth_within_noise_is_no_finding(n: int, expected: list[str]) -> None:
    """Two deviations of the difference of 50 and 53 % are 4.5 points for 1000 images, 2 for 5000."""
    assert names(check_curve([0.1, 0.2], {"fgsm": [50.0, 53.0]}, n)) == expected


def test_two_measurements_at_one_radius_are_no_growth() -> None:
    assert check_curve([0.1, 0.1], {"fgsm": [20.0, 90.0]}, 1000) == []
