"""A Lightning callback that renews the bank of centres."""

import logging
import warnings

import lightning as L
import torch
from made_up import made_up, recall, small_network
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from nngk import CentreBank, GaussianKernelLoss


class RenewBank(L.Callback):
    """Renew the centres of ``module.loss.bank`` before every ``every``-th epoch, in evaluation mode.

    ``embed`` gives the embeddings of all training examples, in the order of their indices.
    """

    def __init__(self, embed, every: int = 1) -> None:
        self.embed, self.every = embed, every

    def on_train_epoch_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        if trainer.current_epoch % self.every == 0:
            training = module.training
            with torch.no_grad():
                module.eval()
                module.loss.bank.renew(self.embed(module), step=trainer.global_step)
            module.train(training)


class Kernels(L.LightningModule):
    """A network and the loss; batches are (rows, labels, training indices)."""

    def __init__(self, network: nn.Module, labels: Tensor, dim: int) -> None:
        super().__init__()
        self.network, self.loss = network, GaussianKernelLoss(CentreBank(labels, dim, n_neighbours=50))

    def training_step(self, batch: tuple[Tensor, Tensor, Tensor], number: int) -> Tensor:
        rows, labels, indices = batch
        return self.loss(self.network(rows), labels, indices)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        groups = [{"params": self.network.parameters(), "lr": 1e-2}, *self.loss.parameter_groups(lr=1e-3)]
        return torch.optim.AdamW(groups)


def main() -> tuple[float, float]:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    rows, labels = made_up()
    module = Kernels(small_network(), labels, dim=8)
    before = recall(module.network, rows, labels)
    batches = DataLoader(TensorDataset(rows, labels, torch.arange(len(rows))), batch_size=32, shuffle=True)
    trainer = L.Trainer(
        max_epochs=10,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[RenewBank(lambda module: module.network(rows), every=2)],
    )
    trainer.fit(module, batches)
    return before, recall(module.network.eval(), rows, labels)


if __name__ == "__main__":
    print("Recall@1 before and after:", main())
