"""Is what 'nngk train' does on a frozen network at least as good as the obvious baselines on the same features?

    python benchmarks/promise/accuracy.py --data DIR [--datasets flowers102 leafsnap cub200 cars196] [--seeds 0 1 2]

Every method reads the same features of EfficientNet-Lite0, one crop per image, and learns from the training and
validation parts of the official splits; the test part is looked at once per method and seed. Kernels are trained as
'nngk train' does by default: learning rate, epoch and σ are chosen on the validation part, then everything but the test
part is trained on. The baselines choose C by cross-validation and the number of neighbours by leave-one-out. Birds and
cars are cropped to their boxes. Rows: results/promise_accuracy.csv.
"""

import time

import neighbours
from cached import Cached, all_cached, promise_options
from logistic import cross_validated
from ours import described, trained

from nngk import Model
from nngk.experiments.record import append_rows, provenance

METHODS = ("kernels", "logistic regression", "k-NN")


def right_of_model(model: Model, data: Cached) -> tuple[float, str]:
    """Return the share of the test images that a model names rightly, and what its training chose."""
    answers = model.probabilities(described(model, data.x[data.is_test]).embeddings).argmax(1)
    chosen = f"lr {model.info['settings']['lr']:g}, epochs {model.info['best_epoch']}, sigma {model.sigma:.3g}"
    return float((answers == data.y[data.is_test].cpu()).double().mean()), chosen


def right_of(method: str, data: Cached, seed: int) -> tuple[float, str]:
    """Return the share of the test images that a method names rightly, and what it chose by itself."""
    if method == "kernels":
        return right_of_model(trained(data, seed), data)
    asked = data.is_test
    x, y = data.x[~asked], data.y[~asked]
    if method == "k-NN":
        right, k = neighbours.accuracy(x, y, data.x[asked], data.y[asked])
        return right, f"k {k}"
    fitted = cross_validated(x, y, seed)
    return fitted.accuracy(data.x[asked], data.y[asked]), f"C {fitted.strength:g}"


def main() -> None:
    methods = {"nargs": "+", "default": list(METHODS)}
    given = promise_options(__doc__, "results/promise_accuracy.csv", methods=methods)
    with all_cached(given) as datasets:
        for data in datasets:
            for seed in given.seeds:
                for method in given.methods:
                    begun = time.perf_counter()
                    right, chosen = right_of(method, data, seed)
                    row = {"dataset": data.dataset, "method": method, "network": data.network, "seed": seed}
                    row |= {"accuracy": round(right, 5), "test_images": int(data.is_test.sum()), "chosen": chosen}
                    row |= {"seconds": round(time.perf_counter() - begun, 2)}
                    append_rows(given.out, [row | provenance(given.device, given.commit)])
                    print(f"{data.dataset:11} {method:20} seed {seed}  {right:.2%}  {chosen}", flush=True)


if __name__ == "__main__":
    main()
