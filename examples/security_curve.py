"""Draw the security curves of two models: how their accuracy falls as the attacker may move an image further.

python examples/security_curve.py
"""

from collections.abc import Sequence
from pathlib import Path

import pwoa
from pwoa.report.plots import security_curve

RADII = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)


def main(
    folder: str = "runs/examples/curve", training: int = 2000, images: int = 100, radii: Sequence[float] = RADII
) -> Path:
    """Measure a teacher and what pruning left of it on so many images, and draw both; return the picture's path."""
    data = pwoa.load_data("mnist-mini")
    settings = {"data.images": training, "data.validation": 200, "evaluation.attacks": "natural"}
    settings |= {"evaluation.strong": 0, "evaluation.checks": False}
    result = pwoa.prune("embedded", data, rate=8, recipe="demo", settings=settings, folder=Path(folder) / "run")
    models: dict[str, str | Path] = {"teacher": "embedded", "an eighth of it": result.folder}

    # One call measures a model at all radii. Its step grows with the radius: 20 steps of a tenth reach the edge.
    attacker = pwoa.Threat("linf", radius=0.3, step=0.03)
    curves, intervals = {}, {}
    for name, model in models.items():
        scores = pwoa.evaluate(
            model, data, attacks="pgd20", threat=attacker, radii=radii, images=images, checks=False, progress=True
        )
        curves[name] = [point["pgd20"] for point in scores.curve]
        intervals[name] = [point.interval("pgd20") for point in scores.curve]
        print(name, {point.threat.radius_text: point["pgd20"] for point in scores.curve})

    # The shade is the 95 % interval: where two of them overlap, so few images do not tell the models apart.
    picture = Path(folder) / "curves.png"
    shown = [point.threat.radius for point in scores.curve]
    security_curve(shown, curves, attacker.norm, picture, intervals=intervals, title="Accuracy in % under PGD-20")
    print(f"security curves: {picture}")
    return picture


if __name__ == "__main__":
    main()
