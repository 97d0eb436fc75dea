"""Replies that are changed as they are read. A cohort's replies may be on disk, beyond what fits into memory; a view
brings them back one by one, so that a mean over a thousand sites takes the memory of a few."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

from crossward.core.tree import Tree

Edit = Callable[[int, Tree], Tree]  # client, a copy of its reply -> the reply as it is to be seen


class EditedReplies(Mapping[int, Tree]):
    """The replies of some clients, each passed through `edit` when it is read."""

    def __init__(
        self, replies: Mapping[int, Tree], edit: Edit = lambda client, reply: reply, without: Collection[int] = ()
    ) -> None:
        self._replies = replies
        self._edit = edit
        self._clients = {client: None for client in replies if client not in without}  # in order

    def __getitem__(self, client: int) -> Tree:
        if client not in self._clients:
            raise KeyError(client)
        return self._edit(client, dict(self._replies[client]))

    def __iter__(self) -> Iterator[int]:
        return iter(self._clients)

    def __len__(self) -> int:
        return len(self._clients)

    @property
    def in_memory(self) -> bool:
        return are_in_memory(self._replies)

    def settled(self) -> Mapping[int, Tree]:
        """Edited once and for all where all replies are in memory, and otherwise again whenever one is read."""
        return dict(self) if self.in_memory else self


def are_in_memory(replies: Mapping[int, Tree]) -> bool:
    """Whether no reply has to be read from disk."""
    return bool(getattr(replies, "in_memory", True))
