"""A SuperNode that waits less: `python -m crossward.engines.flower.supernode …` takes what `flower-supernode` takes.
With `flower-supernode` everything works, too, later."""

from __future__ import annotations

from crossward.engines.flower.haste import hasten_supernode


def main() -> None:
    hasten_supernode()
    from flwr.supernode.cli import flower_supernode

    flower_supernode()


if __name__ == "__main__":
    main()
