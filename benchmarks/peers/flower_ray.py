"""Flower's Ray simulation on the tiny work, with its own FedAvg: prints {"seconds": per round} as a line of JSON.

usage: flower_ray.py ROUNDS WARM_UP WEIGHTS. The rounds after the warm-up are timed; the final weights are saved to the
file WEIGHTS. The strategy is Flower's own, without evaluation.
"""

from __future__ import annotations

import json
import sys
import time

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from peers.work import TINY, fit

client_app, server_app = ClientApp(), ServerApp()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    torch.set_num_threads(1)
    net = TINY.net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    round = message.content["config"]["server-round"] - 1
    fit(TINY, net, round, int(context.node_config["partition-id"]))
    reply = {"arrays": ArrayRecord(net.state_dict()), "metrics": MetricRecord({"num-examples": TINY.images})}
    return Message(RecordDict(reply), reply_to=message)


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    rounds, warm_up, ended = int(sys.argv[1]), int(sys.argv[2]), list[float]()
    strategy = FedAvg(fraction_evaluate=0.0, min_available_nodes=TINY.clients)
    start = ArrayRecord(TINY.net().state_dict())

    def note(round: int, arrays: ArrayRecord) -> None:
        """Called by the strategy at the start and after each round."""
        ended.append(time.perf_counter())

    result = strategy.start(grid, start, num_rounds=warm_up + rounds, evaluate_fn=note)
    torch.save(result.arrays.to_torch_state_dict(), sys.argv[3])
    print(json.dumps({"seconds": (ended[-1] - ended[warm_up]) / rounds}), flush=True)


if __name__ == "__main__":
    resources = {"client_resources": {"num_cpus": 1}, "init_args": {"num_cpus": 2}}
    run_simulation(server_app, client_app, num_supernodes=TINY.clients, backend_config=resources)
