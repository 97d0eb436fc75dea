"""pfl's simulated FedAvg on the cnn work: prints {"seconds": per round} as a line of JSON.

usage: pfl_fedavg.py ROUNDS WARM_UP WEIGHTS. The rounds after the warm-up are timed; the final weights are saved to the
file WEIGHTS. The warm-up is at least one round, because pfl cannot be told not to evaluate in its first.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path

import torch
from peers.work import CNN, LR, normalised, optimiser
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


class Trained(nn.Module):
    """A network with the two methods that pfl asks for."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(self.net(x), y)

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Weighted]:
        return {"loss": Weighted(float(self.loss(x, y).detach()) * len(y), len(y))}


class Laps(TrainingProcessCallback):
    def __init__(self) -> None:
        self.ended: list[float] = []

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        self.ended.append(time.perf_counter())
        return False, Metrics()


class Shuffled(PyTorchTensorDataset):
    """A client's tensors in another order each round, which pfl's own dataset does not offer."""

    def __init__(self, client: int, laps: Laps) -> None:
        x, y = normalised(CNN)[client]
        super().__init__((x, y), user_id=str(client))
        self.client, self.laps = client, laps

    def iter(self, batch_size: int | None) -> Iterator[tuple[Tensor, ...]]:
        x, y = self.raw_data
        for rows in CNN.batches(len(self.laps.ended), self.client):
            yield x.index_select(0, rows).permute(0, 3, 1, 2), y.index_select(0, rows)


def main(rounds: int, warm_up: int, weights: Path) -> None:
    torch.set_num_threads(1)
    laps, net, total = Laps(), CNN.net(), warm_up + rounds
    clients = [Shuffled(client, laps) for client in range(CNN.clients)]
    data = FederatedDataset(clients.__getitem__, cycle(range(CNN.clients)).__next__)
    trained = Trained(net)
    model = PyTorchModel(trained, optimiser, torch.optim.SGD(trained.parameters(), lr=1.0))
    FederatedAveraging().run(
        NNAlgorithmParams(total, total, train_cohort_size=CNN.clients, val_cohort_size=None),
        SimulatedBackend(data, data, [WeightByDatapoints()]),
        model,
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=LR, local_batch_size=CNN.batch),
        callbacks=[laps],
        send_metrics_to_platform=False,
    )
    torch.save(net.state_dict(), weights)
    print(json.dumps({"seconds": (laps.ended[-1] - laps.ended[warm_up - 1]) / rounds}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
