"""The settings that one method alone has, in a section named like it.

They stand here and not with the methods, so that a recipe can be explained without importing torch. A method of your
own declares its settings beside itself.
"""

from dataclasses import dataclass

from pwoa.recipe.settings import number, setting


@dataclass(frozen=True)
class HarpSettings:
    """HARP's penalty on weights kept beyond the budget, and what a layer keeps at least."""

    gamma: float = number(0.01, "what the weight of the penalty on too many weights grows by, each of 20 epochs", low=0)
    minimum: float = number(
        0.1, "what a layer keeps at least while shares are learned, as a part of the budget's fraction", low=0, high=1
    )


@dataclass(frozen=True)
class ApdSettings:
    """APD's loss: λ of distillation, 1 − λ of classification, and the temperature τ."""

    weight: float = number(0.9, "λ of the distillation; 1 − λ is that of the classification", low=0, high=1)
    temperature: float = number(5.0, "τ of the distillation", low=1e-3, high=1e6)
    teacher: str = setting("", "a checkpoint of the same network to distil from; empty: the run's teacher")


@dataclass(frozen=True)
class LbgatSettings:
    """LBGAT's guide, a ResNet-18."""

    guide: str = setting("", "a checkpoint or a run of a ResNet-18 that the guide starts from; empty: drawn anew")


METHOD_SECTIONS: dict[str, type] = {"harp": HarpSettings, "apd": ApdSettings, "lbgat": LbgatSettings}
"""By the name of the method and of the section."""
