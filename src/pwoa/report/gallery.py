"""The example images of a page: what the attacks made of them, and what each network says before and after."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from pwoa.attacks.registry import attack_label
from pwoa.evaluation.examples import Answer, Example
from pwoa.report.html import Markup, element, image, join


def gallery(shown: Mapping[str, Sequence[Example]], most: int) -> Markup:
    """Return a card for each image that all networks have an example of. shown: the examples by network."""
    if not shown:
        return Markup("")
    by_place = {name: {example.place: example for example in examples} for name, examples in shown.items()}
    first, *others = by_place
    places = [place for place in by_place[first] if all(place in by_place[other] for other in others)]
    attacked = any(example.attacked is not None for examples in shown.values() for example in examples)
    cards = join(
        _card(place, {name: found[place] for name, found in by_place.items()}, attacked) for place in places[:most]
    )
    told = "The first test images of each class, and what each network says of them: a class, and how sure it is."
    if attacked:
        told += (
            " Below them is what an attack added, at full contrast (grey is no change), and the attacked image: the "
            "first that made the network wrong when it was evaluated or, where none did, the last that was tried. An "
            "image that the network gets wrong without any attack was not attacked."
        )
    return element("p", told, class_="fine") + element("ul", cards, class_="gallery")


def _card(place: int, networks: Mapping[str, Example], attacked: bool) -> Markup:
    """Return an image and what each network says of it; attacked: and what the attacks made of it."""
    one = next(iter(networks.values()))
    cells = [image(one.pixels, f"test image {place}, of class {one.label}")]
    for name, example in networks.items():
        cells.append(
            element("div", element("p", element("strong", name)), _said("natural", example.natural, example.label))
        )
    if attacked:
        cells.append(element("p", f"class {one.label}, attacked", class_="fine"))
        cells += [_attacked(place, name, example) for name, example in networks.items()]
    return element("li", join(cells), class_="alone" if len(networks) == 1 else None)


def _attacked(place: int, name: str, example: Example) -> Markup:
    if example.attacked is None or example.under_attack is None:
        return element("div", element("p", "not attacked", class_="fine"))
    attack = attack_label(example.attack)
    pictures = image(_perturbation(example.pixels, example.attacked), f"perturbation by {attack} against the {name}")
    pictures += image(example.attacked, f"test image {place} attacked by {attack} against the {name}")
    said = _said("attacked", example.under_attack, example.label)
    return element(
        "div", element("div", pictures, class_="pair"), said, element("p", f"attack: {attack}", class_="fine")
    )


def _said(when: str, answer: Answer, label: int) -> Markup:
    right = answer.label == label
    mark = element("span", "✓" if right else "✗", class_="right" if right else "wrong", aria_hidden="true")
    told = element("span", f"{when}, {'right' if right else 'wrong'}: ", class_="unseen")
    return element("p", told, mark, f" {answer.label}, {100 * answer.confidence:.0f} %", class_="said")


def _perturbation(pixels: NDArray[np.uint8], attacked: NDArray[np.uint8]) -> NDArray[np.uint8]:
    moved = attacked.astype(np.int16) - pixels
    scale = 127 / max(1, int(np.abs(moved).max()))
    return np.clip(np.round(128 + moved * scale), 0, 255).astype(np.uint8)
