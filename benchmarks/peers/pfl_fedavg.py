"""pfl's simulated FedAvg on the cnn work, or on next to none if called with "smoke". pfl always evaluates in its first
round, which is therefore warm-up."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import cycle

import torch
from peers.laps import Laps, from_arguments
from peers.work import CNN, LR, SMOKE_CNN, normalised, optimiser
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

WORK = SMOKE_CNN if "smoke" in sys.argv else CNN


class PflNet(nn.Module):
    """A network with the two methods that pfl asks for."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(self.net(x), y)

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Weighted]:
        return {"loss": Weighted(float(self.loss(x, y).detach()) * len(y), len(y))}


class LapTimer(TrainingProcessCallback):
    def __init__(self, laps: Laps) -> None:
        self.laps = laps

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        self.laps.round_ended(model.pytorch_model.net.state_dict)
        return False, Metrics()


class ShuffledDataset(PyTorchTensorDataset):
    """A client's tensors in another order each round, which pfl's own dataset does not offer."""

    def __init__(self, client: int, laps: Laps) -> None:
        x, y = normalised(WORK)[client]
        super().__init__((x, y), user_id=str(client))
        self.client = client
        self.laps = laps

    def iter(self, batch_size: int | None) -> Iterator[tuple[Tensor, ...]]:
        x, y = self.raw_data
        for rows in WORK.batches(self.laps.done, self.client):
            yield x.index_select(0, rows).permute(0, 3, 1, 2), y.index_select(0, rows)


def main() -> None:
    torch.set_num_threads(1)
    laps = from_arguments()
    clients = [ShuffledDataset(client, laps) for client in range(WORK.clients)]
    data = FederatedDataset(clients.__getitem__, cycle(range(WORK.clients)).__next__)
    net = PflNet(WORK.net())
    model = PyTorchModel(net, optimiser, torch.optim.SGD(net.parameters(), lr=1.0))
    FederatedAveraging().run(
        NNAlgorithmParams(laps.total, laps.total, train_cohort_size=WORK.clients, val_cohort_size=None),
        SimulatedBackend(data, data, [WeightByDatapoints()]),
        model,
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=LR, local_batch_size=WORK.batch),
        callbacks=[LapTimer(laps)],
        send_metrics_to_platform=False,
    )


if __name__ == "__main__":
    main()
