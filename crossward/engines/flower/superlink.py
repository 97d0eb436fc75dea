"""A SuperLink that keeps what passes through it in memory: `python -m crossward.engines.flower.superlink …` takes what
`flower-superlink` takes. With `flower-superlink` everything works, too, later."""

from __future__ import annotations

from crossward.engines.flower.haste import hasten_superlink


def main() -> None:
    hasten_superlink()
    from flwr.superlink.cli import flower_superlink

    flower_superlink()


if __name__ == "__main__":
    main()
