"""Mutants: wrong versions of the package, each of which a named test file must notice. `make mutants` runs them.

    python tests/mutants/run.py [--only WORD] [--workers 2]

mutants.toml lists them: a file of the package, the text in it that is replaced, what replaces it, and the tests that
must fail then. Every test file is run on the unchanged package first: a test that fails anyway notices nothing.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIST = Path(__file__).with_name("mutants.toml")
FAILED = 1  # pytest's exit code when tests ran and some failed; a crash is negative, others mean a run that went wrong
SECONDS = 900  # for one test file


@dataclass(frozen=True)
class Mutant:
    file: str  # from the root of the repository
    old: str  # stands in the file exactly once
    new: str
    tests: str  # a test file, and if wanted further words for pytest, such as -k
    why: str  # what is wrong with it

    def __str__(self) -> str:
        return f"{self.file}: {self.why}"

    def problem(self) -> str:
        """Why it cannot be made; empty if it can."""
        if not (ROOT / self.file).is_file():
            return f"there is no {self.file}"
        count = (ROOT / self.file).read_text(encoding="utf-8").count(self.old)
        if count != 1:
            return f"{self.old!r} stands {count} times in {self.file}, not once"
        if not (ROOT / self.tests.split()[0]).exists():
            return f"there are no tests {self.tests.split()[0]}"
        return ""


def read_mutants(file: Path = LIST) -> list[Mutant]:
    document = tomllib.loads(file.read_text(encoding="utf-8"))
    return [Mutant(**entry) for entry in document["mutant"]]


def exit_code(tests: str, mutant: Mutant | None = None) -> int:
    """pytest's exit code for a test file on a copy of the package, with the mutant in it."""
    with tempfile.TemporaryDirectory(prefix="crossward-mutant-") as folder:
        tree = Path(folder)
        for part in ("crossward", "tests", "benchmarks", "studies"):
            shutil.copytree(ROOT / part, tree / part, ignore=shutil.ignore_patterns("__pycache__", "results"))
        for name in ("pyproject.toml", "CONTRIBUTING.md"):
            shutil.copy(ROOT / name, tree / name)
        if mutant is not None:
            target = tree / mutant.file
            target.write_text(target.read_text(encoding="utf-8").replace(mutant.old, mutant.new), encoding="utf-8")
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests.split()]
        environment = os.environ | {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        return subprocess.run(command, cwd=tree, env=environment, timeout=SECONDS, **quiet).returncode


def red_tests(mutants: Iterable[Mutant], pool: ThreadPoolExecutor) -> list[str]:
    """Test files that fail without any mutant."""
    files = list(dict.fromkeys(mutant.tests for mutant in mutants))
    codes = pool.map(exit_code, files)
    return [file for file, code in zip(files, codes, strict=True) if code]


def survivors(mutants: Sequence[Mutant], pool: ThreadPoolExecutor) -> list[Mutant]:
    """The mutants that their tests do not notice, told of as they come."""
    alive = []
    codes = pool.map(lambda mutant: exit_code(mutant.tests, mutant), mutants)
    for mutant, code in zip(mutants, codes, strict=True):
        killed = code == FAILED or code < 0
        print(f"{'killed  ' if killed else 'SURVIVED'} {mutant} ({mutant.tests})", flush=True)
        if not killed:
            alive.append(mutant)
    return alive


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="mutants whose file or description holds this word")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args(arguments)
    mutants = [mutant for mutant in read_mutants() if options.only in str(mutant)]
    if problems := [problem for mutant in mutants if (problem := mutant.problem())]:
        print("\n".join(problems))
        return 2
    with ThreadPoolExecutor(options.workers) as pool:
        if red := red_tests(mutants, pool):
            print(f"these fail without a mutant: {', '.join(red)}")
            return 2
        alive = survivors(mutants, pool)
    print(f"{len(mutants) - len(alive)} of {len(mutants)} mutants killed")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())
