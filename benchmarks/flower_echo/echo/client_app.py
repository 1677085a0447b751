"""The client: it gives back what it got, its number added to the first value."""

from __future__ import annotations

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Return the arrays of the message, one value of them changed."""
    (values,) = message.content["arrays"].to_numpy_ndarrays()
    values = values.copy()
    values[0] += int(context.node_config["partition-id"]) + 1
    arrays, metrics = ArrayRecord([values]), MetricRecord({"num-examples": 1})
    return Message(content=RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)
