"""A site's SuperNode hands messages to the site's worker itself, and sends what the worker replies.

Flower has an executor, which starts a process for each message. That process fetches the message from the SuperNode by
requests, piece by piece, and brings the reply back in the same way: for 44 MB that takes as long as the way to the
coordinator. The app of a site does nothing but pass messages on (client_app.py), so that the SuperNode can do it,
where the message is. Nothing listens then: whoever wants a site's messages has nobody to ask.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from functools import wraps
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from crossward.hospitals.flower.own_apps import error_without_details

if TYPE_CHECKING:
    from flwr.app import Context, Message


def answering(push: Callable[..., None], worked: Callable[[], None]) -> Callable[..., None]:
    """Flower's function that waits for replies and pushes them to the coordinator. Here messages are answered first,
    and `worked` is told of it."""

    @wraps(push)
    def answer_and_push(state: Any, object_store: Any, **rest: Any) -> None:
        for message in state.get_messages_legacy(is_reply=False):
            answer_stored(message, state, object_store)
            worked()
        push(state=state, object_store=object_store, **rest)

    return answer_and_push


def answer_stored(message: Message, state: Any, store: Any) -> None:
    """Answer a message whose contents are in Flower's store, and put the reply there. There is always a reply: where
    there is none, it says that there was an error."""
    from flwr.app import Message
    from flwr.common.constant import ErrorCode
    from flwr.supernode.start_client_internal import _insert_message

    message_id = message.metadata.message_id
    state.record_message_processing_start(message_id=message_id)
    try:
        context = state.get_run_series_context(state.get_run(message.metadata.run_id).series_id)
        reply = answer_by_app(take_contents(message, store), context)
    except Exception as error:  # of any kind: without a reply the coordinator would wait for this site
        traceback.print_exc()  # to the site's own log; the coordinator learns the type alone
        details = error_without_details(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, f"{type(error)}:")
        reply = Message(details, reply_to=message)
    finally:
        store.delete(message_id)  # also of a message whose contents could not be taken
    state.record_message_processing_end(message_id=message_id)
    _insert_message(reply, state, store)


def take_contents(message: Message, store: Any) -> Message:
    """The message with its contents, which are in the store no longer: a worker trains for long, and a network is
    not to be in memory twice for so long."""
    from flwr.app import Message
    from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
    from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

    message_id = message.metadata.message_id
    tree = store.get_object_tree(message_id)
    contents = {each.object_id: store.get(each.object_id) for each in iterate_object_tree(tree)}
    store.delete(message_id)
    whole = inflate_object_from_contents(message_id, contents)
    if not isinstance(whole, Message):
        raise TypeError(f"a {type(whole).__name__} in the place of a message")
    whole.metadata.__dict__["_message_id"] = message_id  # which its contents do not hold
    return whole


def answer_by_app(message: Message, context: Context) -> Message:
    """The reply of the ClientApp that is installed here, whatever bundle the run has."""
    from crossward.hospitals.flower.client_app import app

    return app(message, context)


def serve_nothing(config: Any, state_factory: Any) -> tuple[Any, Any]:
    """In the place of the SuperNode's server for app processes: there are none."""
    server = SimpleNamespace()  # which Flower tells at its end that it should exit
    thread = SimpleNamespace(join=lambda timeout: None, is_alive=lambda: False)  # which it then waits for
    return server, thread
