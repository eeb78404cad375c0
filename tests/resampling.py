"""The resampling of windows with plain loops."""

import numpy as np


def noise(height, width, seed=0):
    """A picture (3, height, width) of random bytes."""
    return np.random.default_rng([seed, height, width]).integers(0, 256, (3, height, width), dtype=np.uint8)


def axis(start, extent, size, mirrored=False):
    """For each new pixel, the old ones it is made of and what each counts for, in float64."""
    scale = extent / size
    reach = max(scale, 1.0)
    found = []
    for step in range(size):
        centre = ((size - 1 - step if mirrored else step) + 0.5) * scale
        weights = {i: max(0.0, 1 - abs(i + 0.5 - centre) / reach) for i in range(extent)}
        total = sum(weights.values())
        found.append({start + i: w / total for i, w in weights.items() if w > 0})
    return found


def resampled(picture, window, mirrored, size):
    """A window (left, top, width, height) of a picture (3, H, W), resized to (3, size, size), values 0 to 255."""
    left, top, wide, tall = window
    across, down = axis(left, wide, size, mirrored), axis(top, tall, size)
    out = np.zeros((3, size, size))
    for y, rows in enumerate(down):
        for x, columns in enumerate(across):
            for i, weight in rows.items():
                for j, more in columns.items():
                    out[:, y, x] += weight * more * picture[:, i, j]
    return out
