"""Prune a checkpoint from somebody else's repository: look into it, load it, prune it, and pass the result on.

python examples/foreign_checkpoint.py
"""

from pathlib import Path

import torch

import pwoa


def somebody_elses_file(path: Path) -> Path:
    """Write a file as training scripts do: weights among other things, under the names that DataParallel gives them."""
    weights = pwoa.load_model("embedded").state_dict()
    named = {f"module.{name.removeprefix('model.')}": value for name, value in weights.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"epoch": 40, "state_dict": named, "best_acc": 0.99}, path)
    return path


def main(folder: str = "runs/examples/foreign", images: int = 2000, tested: int = 200) -> Path:
    """Prune the file on so many training images, and measure the result on so many test images."""
    file = somebody_elses_file(Path(folder) / "checkpoint.pt")  # you have a real one: give its path instead

    # What is in it? Nothing in the file is executed, and what is no part of the network is told.
    found = pwoa.inspect_checkpoint(file)
    print(f"{file}: {found.architecture}, {found.classes} classes, {found.parameters:,} parameters; {found.warnings}")

    # Load it. With the data at hand it is tried on two images: a wrong size or number of classes is found at once.
    # If its images were normalised outside the network, say so here: mean=(0.1307,), std=(0.3081,).
    data = pwoa.load_data("mnist-mini")
    teacher = pwoa.load_model(file, data)

    # Before anything is pruned, the teacher is checked. One that is not robust, or is fed wrong images, is refused.
    settings = {"data.images": images, "data.validation": 200}
    settings |= {"evaluation.images": tested, "evaluation.strong": 0, "evaluation.checks": False}  # a quick look
    result = pwoa.prune(teacher, data, rate=4, recipe="demo", settings=settings, folder=Path(folder) / "run")
    print(result)

    # For others: weights, what is needed to build the network again, and a card with what was measured.
    shared = pwoa.save_pretrained(result, Path(folder) / "lenet-x4")
    print(f"to pass on: {shared}")
    return shared


if __name__ == "__main__":
    main()
