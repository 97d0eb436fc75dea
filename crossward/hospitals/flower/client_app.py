"""The ClientApp of every method: each message goes to the site, and its answer back."""

from __future__ import annotations

from collections.abc import Callable

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from crossward.hospitals.flower.records import parcel, records
from crossward.hospitals.messages import Parcel, passed_on

PATIENCE = 120.0  # seconds for a worker that is starting: it imports torch and reads images
Answer = Callable[[Parcel, Context], Parcel]


def client_app(answer: Answer) -> ClientApp:
    app = ClientApp()

    def handle(message: Message, context: Context) -> Message:
        return Message(records(answer(parcel(message.content), context)), reply_to=message)

    for register in (app.train(), app.evaluate(), app.query("hello"), app.query("open")):
        register(handle)
    return app


def by_worker(asked: Parcel, context: Context) -> Parcel:
    """Of the process that holds torch and the images, at its socket."""
    return passed_on(asked, str(context.node_config["socket"]), PATIENCE)


app = client_app(by_worker)
