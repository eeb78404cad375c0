"""The shapes of answers and of changes, as the OpenAPI description has them."""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, Field

PHOTO_ID = r"^[0-9a-f]{20}$"


def class_name(name: str) -> str:
    """Return a name without space around it. Raise ValueError if nothing is left, or it cannot be printed.

    >>> class_name(" red kite ")
    'red kite'
    """
    name = name.strip()
    if not name or not name.isprintable():
        raise ValueError("a class name is a line of text that can be printed")
    return name


ClassName = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(class_name)]
KnownName = Annotated[str, Field(min_length=1, max_length=1000)]  # it may be older than the rule for new ones


class Problem(BaseModel):
    """What was wrong."""

    error: str = Field(description="A sentence for a person.")


class Photo(BaseModel):
    """An image of the model behind an answer."""

    id: str = Field(description="Its address is /photos/ID.")
    name: str = Field(description="The name of its file.")
    label: str
    share: float = Field(description="Its share of all the kernels around the picture, from 0 to 1.")
    distance: float


class Bar(BaseModel):
    """A class and its probability."""

    label: str
    probability: float


class Classified(BaseModel):
    """What a picture shows."""

    label: str = Field(description="The likeliest of the classes that the model knows.")
    probability: float
    is_unknown: bool = Field(description="Whether the picture is unlike everything that the model knows.")
    unknown: float = Field(description="How unknown it is, from 0 to 1.")
    probabilities: list[Bar] = Field(description="The likeliest classes first.")
    evidence: list[Photo] = Field(description="The images around the picture, largest share first.")
    decided_by: str = Field(description="'kernels' if the images of the evidence decided, 'softmax' if a layer did.")
    version: int = Field(description="The state of the model that answered.")


class Found(BaseModel):
    """The images that are most similar to a picture, nearest first."""

    found: list[Photo]
    version: int


class Embedded(BaseModel):
    """The embedding of a picture."""

    embedding: list[float]


class ClassSummary(BaseModel):
    """A class that the model knows."""

    name: str
    images: int
    photos: list[str] = Field(description="The ids of its newest images.")


class ClassList(BaseModel):
    """Every class that the model knows."""

    classes: list[ClassSummary]
    version: int
    changes: list[str] = Field(description="What this server can change; empty if it was started without a token.")
    undo: str | None = Field(description="The change that can be undone.")


class PhotoList(BaseModel):
    """The images of a class."""

    photos: list[str]
    total: int


class Changed(BaseModel):
    """A change that is on the disk."""

    change: str | None = Field(description="What /undo takes now, if there is something to undo.")
    said: str = Field(description="A sentence for a person.")
    version: int


class Rename(BaseModel):
    """A class and the name that it gets."""

    old: KnownName
    new: ClassName


class Merge(BaseModel):
    """A class and the one that it becomes a part of."""

    source: KnownName
    target: KnownName


class Undo(BaseModel):
    """The change to take back."""

    change: Annotated[str, Field(max_length=100)]


class Map(BaseModel):
    """Every image of the model on a plane; column i of each list is image i."""

    names: list[str] = Field(description="The classes.")
    labels: list[int] = Field(description="Each image's class, a place in the names.")
    x: list[int]
    y: list[int]
    side: int = Field(description="Places are from 0 to this.")
    version: int


class MapPhotos(BaseModel):
    """Photos of some images of the map."""

    photos: list[str] = Field(description="Their ids, in the order in which the images were asked for.")


class NearPhoto(BaseModel):
    """An image of the map."""

    place: int = Field(description="Its number on the map.")
    id: str = Field(description="The address of its photo is /photos/ID.")
    name: str
    label: str
    distance: float


class Near(BaseModel):
    """An image of the map and those around it."""

    image: NearPhoto
    near: list[NearPhoto] = Field(description="Nearest first.")


class Doubt(BaseModel):
    """Something doubtful about the model's images."""

    kind: str = Field(description="'label', 'duplicate', 'confused' or 'useless'.")
    said: str = Field(description="A sentence for a person.")
    places: list[int] = Field(description="The images that it is about, by their number on the map.")
    photos: list[str] = Field(description="The ids of their photos.")


class Doubts(BaseModel):
    """What is doubtful, the worst of each kind first."""

    doubts: list[Doubt]
    version: int


class Status(BaseModel):
    """How the server is."""

    status: str
