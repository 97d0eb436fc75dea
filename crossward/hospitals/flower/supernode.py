"""A SuperNode with shorter waits. `python -m crossward.hospitals.flower.supernode …` takes the options of
`flower-supernode`, which would also work, more slowly."""

from __future__ import annotations

from crossward.hospitals.flower.monkeypatches import hasten_supernode


def main() -> None:
    hasten_supernode()
    from flwr.supernode.cli import flower_supernode

    flower_supernode()


if __name__ == "__main__":
    main()
