"""A SuperNode with our patches. `python -m crossward.hospitals.flower.supernode …` takes the options of
`flower-supernode`, which would also work, more slowly."""

from __future__ import annotations

from crossward.hospitals.flower.monkeypatches import patch_supernode


def main() -> None:
    patch_supernode()
    from flwr.supernode.cli import flower_supernode

    flower_supernode()


if __name__ == "__main__":
    main()
