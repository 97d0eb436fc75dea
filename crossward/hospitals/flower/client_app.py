"""The ClientApp of every method: it forwards each message to the site, and the site's reply to the coordinator."""

from __future__ import annotations

from collections.abc import Callable

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from crossward.hospitals.flower.records import from_records, to_records
from crossward.hospitals.messages import SiteMessage, forward_to_worker

WORKER_PATIENCE = 120.0  # seconds for a worker that is starting: it imports torch and reads images
Answer = Callable[[SiteMessage, Context], SiteMessage]


def create_client_app(answer: Answer) -> ClientApp:
    """A ClientApp that answers every message by `answer`."""
    client_app = ClientApp()

    def handle(message: Message, context: Context) -> Message:
        reply = answer(from_records(message.content), context)
        return Message(to_records(reply), reply_to=message)

    queries = (client_app.query(task) for task in ("hello", "open", "receipt"))
    for register in (client_app.train(), client_app.evaluate(), *queries):
        register(handle)
    return client_app


def answer_by_worker(request: SiteMessage, context: Context) -> SiteMessage:
    """The reply of the site's worker, the process that holds torch and the images."""
    return forward_to_worker(request, str(context.node_config["socket"]), WORKER_PATIENCE)


app = create_client_app(answer_by_worker)
