"""The loss where pytorch-metric-learning's losses stand: loss(embeddings, labels), references, and its miners.

Its trainers call ``loss(embeddings, labels, indices_tuple)``, where a miner found the tuple. Kernels need no miner,
since every pair counts by its distance; a tuple in third place is refused with a sentence and never ignored.
"""

import torch
from made_up import made_up, recall, small_network
from pytorch_metric_learning.miners import MultiSimilarityMiner

from nngk import GaussianKernelLoss, InputError


def main() -> tuple[float, float]:
    rows, labels = made_up()
    network = small_network()
    before = recall(network, rows, labels)
    loss = GaussianKernelLoss(sigma=1.0)
    optimiser = torch.optim.AdamW(network.parameters(), lr=1e-2)
    for epoch in range(15):
        for indices in torch.randperm(len(rows), generator=torch.Generator().manual_seed(epoch)).split(64):
            optimiser.zero_grad()
            loss(network(rows[indices]), labels[indices]).backward()
            optimiser.step()
    x = network(rows).detach()
    loss(x[:10], labels[:10], ref_emb=x[10:], ref_labels=labels[10:])  # references, as its losses take them
    mined = MultiSimilarityMiner()(x, labels)
    try:
        loss(x, labels, mined)
    except InputError as error:
        print(error)
    else:
        raise AssertionError("the miner's tuple was ignored")
    return before, recall(network, rows, labels)


if __name__ == "__main__":
    print("Recall@1 before and after:", main())
