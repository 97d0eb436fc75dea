"""A site's SuperNode. `python -m crossward.hospitals.flower.supernode …` takes the options of `flower-supernode`; the
variables in `connections` name its socket, its certificate and its key."""

from __future__ import annotations

from crossward.freed_memory import return_memory_in_rests
from crossward.hospitals.flower import monkeypatches
from crossward.hospitals.flower.monkeypatches import apply_patches, pull_waits


def main() -> None:
    assert_in_force = apply_patches(pull_waits, monkeypatches.clients, monkeypatches.supernode)
    from flwr.supernode.cli import flower_supernode

    import crossward.hospitals.flower.client_app  # noqa: F401  # before the first message, and before memory is counted

    assert_in_force()
    return_memory_in_rests()
    flower_supernode()


if __name__ == "__main__":
    main()
