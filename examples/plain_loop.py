"""The loss in a training loop of your own."""

import torch
from made_up import made_up, recall, small_network

from nngk import CentreBank, GaussianKernelLoss


def main() -> tuple[float, float]:
    rows, labels = made_up()
    network = small_network()
    before = recall(network, rows, labels)
    bank = CentreBank(labels, dim=8, n_neighbours=50)  # one centre per training example, keyed by its index
    loss = GaussianKernelLoss(bank, sigma="auto")  # σ is tuned on the bank when the loss is first used
    optimiser = torch.optim.AdamW([{"params": network.parameters(), "lr": 1e-2}, *loss.parameter_groups(lr=1e-3)])
    for epoch in range(15):
        if epoch % 2 == 0:  # centres are what the network said a while ago: renew them every few epochs
            with torch.no_grad():
                bank.renew(network.eval()(rows))
            network.train()
        for indices in torch.randperm(len(rows), generator=torch.Generator().manual_seed(epoch)).split(32):
            optimiser.zero_grad()
            loss(network(rows[indices]), labels[indices], indices).backward()  # nobody sees its own centre
            optimiser.step()
    return before, recall(network.eval(), rows, labels)


if __name__ == "__main__":
    print("Recall@1 before and after:", main())
