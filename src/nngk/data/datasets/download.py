"""Fetch published datasets from where their authors published them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from nngk.data.check import check_folder
from nngk.data.datasets.by_name import require_name
from nngk.data.datasets.fetch import fetch
from nngk.data.datasets.official import locate
from nngk.data.datasets.unpack import unpack
from nngk.errors import InputError


@dataclass(frozen=True)
class PublishedFile:
    """A file that a dataset's authors published."""

    url: str
    md5: str | None = None


@dataclass(frozen=True)
class Publication:
    """Where a dataset is published, under which terms, and where else people find it."""

    files: tuple[PublishedFile, ...]
    licence: str
    folder: str = ""  # the files go into this folder; empty: they bring their own
    gone: str = ""  # why there is no official address any more
    mirrors: str = ""
    layout: str = ""  # what to unpack, where nothing is fetched


_FLOWERS = "https://www.robots.ox.ac.uk/~vgg/data/flowers/102"

PUBLICATIONS: dict[str, Publication] = {
    "cub200": Publication(
        files=(
            PublishedFile(
                "https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz",
                "97eceeb196236b17998738112f37df78",
            ),
        ),
        licence="CUB-200-2011 (Caltech): for non-commercial research and education; the photographs belong to their "
        "photographers. Cite Wah et al., Technical Report CNS-TR-2011-001, 2011.",
    ),
    "flowers102": Publication(
        files=(
            PublishedFile(f"{_FLOWERS}/102flowers.tgz", "52808999861908f626f3c1f4e79d11fa"),
            PublishedFile(f"{_FLOWERS}/imagelabels.mat", "e0620be6f572b9609742df49c70aed4d"),
            PublishedFile(f"{_FLOWERS}/setid.mat", "a5357ecc9cb78c4bef273ce3793fc85c"),
        ),
        folder="flowers-102",
        licence="Oxford 102 Flowers (Visual Geometry Group): for research; no licence is stated, and the photographs "
        "belong to their photographers. Cite Nilsback and Zisserman, ICVGIP 2008.",
    ),
    "leafsnap": Publication(
        files=(PublishedFile("http://leafsnap.com/static/dataset/leafsnap-dataset.tar"),),
        folder="leafsnap-dataset",
        licence="Leafsnap (Columbia University, University of Maryland, Smithsonian Institution): released to promote "
        "research; no licence is stated. Cite Kumar et al., ECCV 2012.",
        mirrors="kaggle.com/datasets/xhlulu/leafsnap-dataset",
    ),
    "cars196": Publication(
        files=(),
        licence="Stanford Cars: for non-commercial research; the photographs belong to their owners. Cite Krause et "
        "al., 3dRR-13, 2013.",
        gone="The official address of Stanford Cars (ai.stanford.edu/~jkrause/cars/car_dataset.html) has been dead "
        "since 2023",
        mirrors="kaggle.com/datasets/rickyyyyyyy/torchvision-stanford-cars (the official layout) or "
        "kaggle.com/datasets/jessicali9530/stanford-cars-dataset, with the devkit and cars_test_annos_withlabels.mat "
        "as told in github.com/pytorch/vision/issues/7545",
        layout="cars_train/, cars_test/, devkit/ and cars_test_annos_withlabels.mat",
    ),
    "inshop": Publication(
        files=(),
        licence="In-Shop Clothes Retrieval (DeepFashion, The Chinese University of Hong Kong): for non-commercial "
        "research, under an agreement. Cite Liu et al., CVPR 2016.",
        gone="In-Shop Clothes Retrieval is given to those who sign its agreement "
        "(mmlab.ie.cuhk.edu.hk/projects/DeepFashion/InShopRetrieval.html), so that it cannot be fetched here",
        layout="Eval/list_eval_partition.txt and img/ (or Img/img/)",
    ),
    "sop": Publication(
        files=(),
        licence="Stanford Online Products: for research; the photographs belong to their sellers. Cite Song et al., "
        "CVPR 2016.",
        gone="Stanford Online Products is not fetched here: its authors tell where it is at "
        "github.com/rksltnl/Deep-Metric-Learning-CVPR16",
        layout="Stanford_Online_Products/ with Ebay_train.txt, Ebay_test.txt and a folder for each kind of product",
    ),
    "inat2018": Publication(
        files=(),
        licence="iNaturalist 2018: for non-commercial research and education; the photographs belong to their "
        "photographers. Cite Van Horn et al., CVPR 2018.",
        gone="iNaturalist 2018 takes 120 GB and is not fetched here: see github.com/visipedia/inat_comp, and for the "
        "split by species github.com/Andrew-Brown1/Smooth_AP",
        layout="train_val2018/, train2018.json, val2018.json and Inat_dataset_splits/",
    ),
}


def download(
    name: str,
    folder: str | Path,
    *,
    progress: Callable[[str, int, int], None] | None = None,
    say: Callable[[str], None] | None = None,
) -> Path:
    """Fetch, unpack and check a dataset; return its folder.

    `progress` gets a file's name, the bytes done and the bytes in all; `say` gets the licence and what happens.
    An interrupted download goes on from where it was. A dataset that is complete already is left alone.

    >>> download("mnist", "data")
    Traceback (most recent call last):
    nngk.errors.InputError: There is no dataset 'mnist': the names are cub200, cars196, flowers102, leafsnap, inshop, sop, inat2018.
    """  # noqa: E501
    dataset, folder = require_name(name), Path(folder)
    say = say or (lambda sentence: None)
    here = locate(dataset, folder) if folder.is_dir() else None
    if here is not None and check_folder(here).complete:
        say(f"{dataset.title} is complete in {here}.")
        return here
    publication = PUBLICATIONS[name]
    say(publication.licence)
    if publication.gone:
        mirrors = f" People use the mirrors {publication.mirrors}." if publication.mirrors else ""
        raise InputError(
            f"{publication.gone}.{mirrors} Unpack it into {folder} as {publication.layout}, then look with: "
            f"nngk data check {folder}"
        )
    place = folder / publication.folder
    for file in publication.files:
        _bring(file, place, publication, progress, say)
    root = locate(dataset, place)
    report = check_folder(root) if root is not None else None
    if root is None or report is None or not report.complete:
        found = "; ".join(report.problems) if report is not None else "its folder is not there"
        raise InputError(f"{dataset.title} was fetched to {place} but is not complete: {found}")
    for file in publication.files:
        if _is_archive(file):
            (place / _file_name(file)).unlink(missing_ok=True)  # unpacked and checked: its space is better free
    say(f"{dataset.title} is complete in {root}.")
    return root


def _bring(
    file: PublishedFile,
    place: Path,
    publication: Publication,
    progress: Callable[[str, int, int], None] | None,
    say: Callable[[str], None],
) -> None:
    name = _file_name(file)
    say(f"Fetching {file.url}")
    if file.md5 is None:
        say(f"Its authors published no checksum of {name}: only the number of its images and classes can be compared.")
    try:
        told = None if progress is None else (lambda done, total: progress(name, done, total))
        fetched = fetch(file.url, place / name, md5=file.md5, progress=told)
    except InputError as error:
        if publication.mirrors:
            raise InputError(f"{error} People use the mirror {publication.mirrors}.") from error
        raise
    if _is_archive(file):
        say(f"Unpacking {fetched}")
        unpack(fetched, place)


def _file_name(file: PublishedFile) -> str:
    return file.url.rsplit("/", 1)[1]


def _is_archive(file: PublishedFile) -> bool:
    return file.url.endswith((".tgz", ".tar", ".tar.gz"))
