"""From files to batches: tables of images, decoding and caching, splits, augmentation, sampling, loading."""

from nngk.data.check import FolderReport, check_folder
from nngk.data.datasets.by_name import DATASETS
from nngk.data.datasets.download import download
from nngk.data.decode import as_batch, fitted, fitted_pictures, load_image, square, squares
from nngk.data.flat_pictures import FlatPictures
from nngk.data.images import ImageDataset, Images
from nngk.data.loading import BatchSource, batches
from nngk.data.packs.writer import pack
from nngk.data.reading import read_images, read_pack
from nngk.data.sampling import class_balanced_batches, random_batches
from nngk.data.splits import Split, class_disjoint, split, stratified
from nngk.data.table import ImageTable, require_pairs, require_training_images
from nngk.data.transforms import Augmentation, centre_crop

evaluation = centre_crop  # the name that it had before

__all__ = [
    "DATASETS",
    "Augmentation",
    "BatchSource",
    "FlatPictures",
    "FolderReport",
    "ImageDataset",
    "ImageTable",
    "Images",
    "Split",
    "as_batch",
    "batches",
    "centre_crop",
    "check_folder",
    "class_balanced_batches",
    "class_disjoint",
    "download",
    "evaluation",
    "fitted",
    "fitted_pictures",
    "load_image",
    "pack",
    "random_batches",
    "read_images",
    "read_pack",
    "require_pairs",
    "require_training_images",
    "split",
    "square",
    "squares",
    "stratified",
]
