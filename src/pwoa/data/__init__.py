"""Data sets: reading the official files, where they come from, images on the device, augmentation."""

from pwoa.data.augment import AUGMENTATIONS
from pwoa.data.catalog import DATASETS
from pwoa.data.images import Data, Images
from pwoa.data.load import load_data

__all__ = ["AUGMENTATIONS", "DATASETS", "Data", "Images", "load_data"]
