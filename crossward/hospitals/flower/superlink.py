"""A SuperLink that keeps messages in memory. `python -m crossward.hospitals.flower.superlink …` takes the options of
`flower-superlink`, which would also work, more slowly."""

from __future__ import annotations

from crossward.hospitals.flower.monkeypatches import hasten_superlink


def main() -> None:
    hasten_superlink()
    from flwr.superlink.cli import flower_superlink

    flower_superlink()


if __name__ == "__main__":
    main()
