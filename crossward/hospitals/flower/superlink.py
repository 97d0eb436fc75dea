"""A SuperLink with our patches. `python -m crossward.hospitals.flower.superlink …` takes the options of
`flower-superlink`, which would also work, more slowly."""

from __future__ import annotations

from crossward.hospitals.flower.monkeypatches import patch_superlink


def main() -> None:
    patch_superlink()
    from flwr.superlink.cli import flower_superlink

    flower_superlink()


if __name__ == "__main__":
    main()
