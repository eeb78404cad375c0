"""Defaults and limits that several rooms share, so that a function and the setting of the same name always agree."""

# The network and its head.
NETWORK = "efficientnet-lite0"
WEIGHTS = "imagenet"
DIM = 512
POOL = "avg+max"
LAYERS = None
LAYER_NORM = True
NORMALISE = True
DROPOUT = 0.0

# The shares of the data that are held out.
VAL_FRACTION = 0.2
TEST_FRACTION = 0.2

# The share of images of known classes that may be called unknown.
FALSE_ALARMS = 0.05

# The machine: a GPU where there is one.
DEVICE = "auto"

# The narrowest and the widest kernel: beyond these, the square of σ leaves the range of float32.
NARROWEST, WIDEST = 1e-15, 1e15
