"""The images of a model as JSON in the form of a FiftyOne dataset: file, label, embedding, and what the audit says.

python examples/fiftyone_json.py my-model samples.json
"""

import json
import sys
from pathlib import Path

from nngk import Model
from nngk.model.left_out import leave_each_out


def samples(model: Model) -> dict:
    """Return {'samples': […]}; each has 'filepath', 'ground_truth', 'prediction' by the other images, 'embedding'."""
    left, names = leave_each_out(model.classes, model.sigma, model.n_neighbours), model.class_names
    rows = zip(model.sources, model.labels.tolist(), left.called.tolist(), left.called_log.exp().tolist(),
               left.own.exp().tolist(), model.centres.tolist())  # fmt: skip
    return {
        "samples": [
            {
                "filepath": source,
                "ground_truth": {"_cls": "Classification", "label": names[label]},
                "prediction": {"_cls": "Classification", "label": names[called], "confidence": confidence},
                "mistakenness": 1 - own,
                "embedding": embedding,
            }
            for source, label, called, confidence, own, embedding in rows
        ]
    }


if __name__ == "__main__":
    folder, out = sys.argv[1:]
    Path(out).write_text(json.dumps(samples(Model.load(folder))), encoding="utf-8")
