"""Flower's Ray simulation on the tiny work, with Flower's own FedAvg; clients evaluate if called with "evaluate"."""

from __future__ import annotations

import sys

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from peers.laps import from_arguments
from peers.work import TINY, accuracy, fit

client_app = ClientApp()
server_app = ServerApp()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    torch.set_num_threads(1)
    net = TINY.net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    fit(TINY, net, message.content["config"]["server-round"] - 1, int(context.node_config["partition-id"]))
    reply = {"arrays": ArrayRecord(net.state_dict()), "metrics": MetricRecord({"num-examples": TINY.images})}
    return Message(RecordDict(reply), reply_to=message)


@client_app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    torch.set_num_threads(1)
    net = TINY.net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    share = accuracy(TINY, net, int(context.node_config["partition-id"]))
    metrics = MetricRecord({"accuracy": share, "num-examples": TINY.images})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    laps = from_arguments()

    def end_round(round: int, arrays: ArrayRecord) -> None:
        if round:  # the strategy also calls it before the first
            laps.round_ended(arrays.to_torch_state_dict)

    evaluated = 1.0 if "evaluate" in sys.argv else 0.0
    strategy = FedAvg(fraction_evaluate=evaluated, min_available_nodes=TINY.clients)
    initial = ArrayRecord(TINY.net().state_dict())
    strategy.start(grid, initial, num_rounds=laps.total, evaluate_fn=end_round)


if __name__ == "__main__":
    resources = {"client_resources": {"num_cpus": 1}, "init_args": {"num_cpus": 2}}
    run_simulation(server_app, client_app, num_supernodes=TINY.clients, backend_config=resources)
