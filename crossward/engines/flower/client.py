"""The ClientApp of every method: each message goes to the site's worker, and its answer back."""

from __future__ import annotations

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from crossward.engines.flower.parcel import passed_on
from crossward.engines.flower.records import parcel, records

PATIENCE = 120.0  # seconds for a worker that is starting: it imports torch and reads images

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    answer = passed_on(parcel(message.content), str(context.node_config["socket"]), PATIENCE)
    return Message(records(answer), reply_to=message)


app.evaluate()(train)
app.query("hello")(train)
app.query("open")(train)
