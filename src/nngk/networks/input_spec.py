"""What a network expects of an image: its size and its normalisation."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nngk.data.transforms import IMAGENET_MEAN, IMAGENET_STD

Triple = tuple[float, float, float]

HALF: Triple = (0.5, 0.5, 0.5)


@dataclass(frozen=True)
class InputSpec:
    """The input that a network's weights were trained on; it travels with the weights.

    `resize` is the shorter side before the crop, or both sides where images are squashed (`squash`), and `size` the
    side of the crop; `mean` and `std` are those of RGB values in 0..1.

    >>> InputSpec(size=32, resize=36).mean
    (0.485, 0.456, 0.406)
    """

    size: int = 224
    resize: int = 256
    mean: Triple = IMAGENET_MEAN
    std: Triple = IMAGENET_STD
    squash: bool = False

    def to_config(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "size": self.size,
            "resize": self.resize,
            "mean": list(self.mean),
            "std": list(self.std),
            "squash": self.squash,
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "InputSpec":
        """Return the input of a `to_config`; those of files from before images could keep their aspect are squashed."""
        return cls(
            int(config["size"]),
            int(config["resize"]),
            triple(config["mean"]),
            triple(config["std"]),
            bool(config.get("squash", True)),
        )


def triple(values: Any) -> Triple:
    """Return three numbers as a tuple of floats."""
    red, green, blue = (float(value) for value in values)
    return red, green, blue
