"""A teacher measured once, for all the runs that prune it by the same recipe."""

from pathlib import Path

from torch import nn

from pwoa.data.images import Data
from pwoa.devices import choose_threads, using_threads
from pwoa.errors import InputError
from pwoa.evaluation.scores import Scores
from pwoa.methods import find_method
from pwoa.models.architectures.registry import architecture_name
from pwoa.models.checkpoints.folder import fingerprint
from pwoa.models.load import kind_of, load_model, refuse_exported
from pwoa.progress import Progress
from pwoa.recipe import AUTO, Recipe, numbers
from pwoa.recipe.settings import is_factory
from pwoa.runs import prepare
from pwoa.storage.folder import held


def load_teacher(recipe: Recipe, data: Data) -> tuple[nn.Module, str]:
    """Load the recipe's teacher, and name its architecture: a run or a model folder knows it."""
    teacher = recipe.teacher
    if not teacher.checkpoint:
        raise InputError("this recipe names no teacher; give one with --checkpoint FILE (teacher.checkpoint)")
    refuse_exported(teacher.checkpoint)
    mean, std = numbers(teacher.mean, "teacher.mean"), numbers(teacher.std, "teacher.std")
    given = is_factory(teacher.architecture) or kind_of(teacher.checkpoint) not in ("folder", "packed")
    architecture = teacher.architecture if given and teacher.architecture != AUTO else None
    model = load_model(teacher.checkpoint, data, architecture=architecture, mean=mean, std=std)
    return model, architecture or architecture_name(model)


def measure_teacher(recipe: Recipe, folder: Path, progress: Progress) -> Scores:
    """Measure the teacher of a recipe as a run of it does, and keep the evaluation in a folder."""
    loading = prepare.load_rest(find_method(recipe.method).complete(recipe), None, progress)
    teacher = load_teacher(loading.recipe, loading.data)[0]
    loaded = loading.on_device()
    teacher = teacher.to(loaded.device).eval().requires_grad_(False)
    with using_threads(choose_threads()):
        return share_measurement(teacher, fingerprint(teacher), loaded, folder, progress)


def share_measurement(
    teacher: nn.Module, fingerprint: str, loaded: prepare.Loaded, folder: Path, progress: Progress
) -> Scores:
    """Measure a teacher in a folder that several runs share: the first does, the others wait for it and read."""
    with held(folder.with_name(f".{folder.name}"), wait=True):
        return prepare.measure_model(teacher, fingerprint, loaded, folder, "teacher", progress)
