"""`python -m crossward` is the command `crossward`."""

from __future__ import annotations

from crossward.cli.main import main

if __name__ == "__main__":
    main()
