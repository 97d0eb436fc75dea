"""The arrows of CONTRIBUTING and the rules of the house, read off the source. Each rule is a function from a
file to its offences, and each is shown to catch one."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FORBIDDEN_NAMES = {"utils", "base", "common", "helpers"}
CONTAINERS = {"list", "dict", "set", "defaultdict", "OrderedDict", "Counter", "deque", "bytearray"}
DISPLAYS = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)
MUTATORS = {"add", "append", "clear", "discard", "extend", "insert", "pop", "popitem", "remove", "setdefault", "update"}
GRADIENTS = (".backward", "autograd.grad")
PURE = ("core", "errors", "names")
METHOD = (*PURE, "aggregate", "losses", "statistics", "nets.net", "nets.parts", "text")
ARROWS = {  # what a part may import of the package, besides itself
    "core": ("errors",),
    "methods": (*METHOD, "plugins"),
    "plugins": METHOD,
    "engines": ("core", "errors", "__version__"),
    "aggregate": PURE,
    "losses": PURE,
    "statistics": PURE,
    "report": ("experiment.rundir", "errors", "names"),
}


@dataclass(frozen=True)
class Source:
    path: str  # from the root, "crossward/core/run.py"
    text: str

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(ast.parse(self.text)))

    @property
    def part(self) -> str:
        """What is directly below the package: core, methods, losses …; empty for tests and benchmarks."""
        first, *rest = Path(self.path).with_suffix("").parts
        return rest[0] if first == "crossward" else ""

    def imported(self) -> Iterator[str]:
        """Whatever is imported, by its full name: `from a import b` is a.b."""
        for node in self.nodes:
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                at = Path(self.path).parts[: -node.level] if node.level else ()
                module = ".".join([*at, *([node.module] if node.module else [])])
                yield from (f"{module}.{alias.name}" for alias in node.names)

    def attributes(self) -> Iterator[str]:
        yield from (ast.unparse(node) for node in self.nodes if isinstance(node, ast.Attribute))


Rule = Callable[[Source], Iterable[str]]


def within(module: str, parts: Iterable[str]) -> bool:
    return any(module == part or module.startswith(f"{part}.") for part in parts)


def arrows(source: Source) -> Iterator[str]:
    if source.part in ARROWS:
        allowed = [f"crossward.{part}" for part in (source.part, *ARROWS[source.part])]
        ours = [name for name in source.imported() if within(name, ["crossward"])]
        yield from (f"imports {name}" for name in ours if not within(name, allowed))


def no_torchvision(source: Source) -> Iterator[str]:
    yield from (f"imports {module}" for module in source.imported() if within(module, ["torchvision"]))


def no_pickle(source: Source) -> Iterator[str]:
    if not source.part:  # tests must make hostile files, benchmarks read what their peers wrote
        return
    if source.path not in ("crossward/engines/pool.py", "crossward/engines/pool_worker.py"):
        modules = ["pickle", "_pickle", "cloudpickle", "dill", "joblib", "shelve", "multiprocessing.reduction"]
        yield from (f"imports {module}" for module in source.imported() if within(module, modules))
    yield from ("torch.load" for module in source.imported() if module == "torch.load")
    safe = sum(isinstance(n, ast.Call) and loads_weights_only(n) for n in source.nodes)
    yield from ["torch.load"] * (list(source.attributes()).count("torch.load") - safe)
    for node in source.nodes:
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle" and ast.unparse(node.value) != "False":
            yield "allow_pickle"


def loads_weights_only(call: ast.Call) -> bool:
    """torch.load(..., weights_only=True), which executes nothing of what it reads."""
    words = {k.arg: ast.unparse(k.value) for k in call.keywords}
    return ast.unparse(call.func) == "torch.load" and words.get("weights_only") == "True"


def no_hidden_state(source: Source) -> Iterator[str]:
    """Strict mode cannot see a container of the module that a method writes to. Constants in capitals may be
    containers that nobody changes, which one that starts empty hardly is."""
    yield from (f"global {', '.join(node.names)}" for node in source.nodes if isinstance(node, ast.Global))
    if source.part not in ("core", "methods", "plugins"):
        return
    constants = {name: value for name, value in bound(source) if is_container(value)}
    for name, value in constants.items():
        if name != name.upper() or starts_empty(value):
            yield f"module-level container {name}"
    yield from (f"changes {name}" for name in changed(source) if name in constants)


def bound(source: Source) -> Iterator[tuple[str, ast.AST]]:
    """What is bound at the level of the module, in `if` and `try` as well; not dunders such as __all__."""
    todo: list[ast.AST] = [*ast.parse(source.text).body]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If | ast.Try | ast.With | ast.For | ast.While):
            todo += ast.iter_child_nodes(node)
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [t.id for t in targets if isinstance(t, ast.Name)]
            yield from ((name, node.value) for name in names if not name.startswith("__"))


def is_container(value: ast.AST) -> bool:
    return isinstance(value, DISPLAYS) or (isinstance(value, ast.Call) and called(value) in CONTAINERS)


def starts_empty(value: ast.AST) -> bool:
    if isinstance(value, ast.Call):
        return called(value) == "defaultdict" or not (value.args or value.keywords)
    return not any(isinstance(child, ast.expr) for child in ast.iter_child_nodes(value))


def called(call: ast.Call) -> str:
    return ast.unparse(call.func).split(".")[-1]


def changed(source: Source) -> Iterator[str]:
    """Names whose object is written to."""
    for node in source.nodes:
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
            yield ast.unparse(node.value)
        elif isinstance(node, ast.AugAssign):
            yield ast.unparse(node.target)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MUTATORS:
            yield ast.unparse(node.func.value)


def one_training_loop(source: Source) -> Iterator[str]:
    """A site's network takes its steps in loop.py, whatever a server fits in descent.py."""
    if source.part and source.path not in ("crossward/core/loop.py", "crossward/core/gradient_descent.py"):
        calls = [node.func for node in source.nodes if isinstance(node, ast.Call)]
        steps = [f for f in calls if isinstance(f, ast.Attribute) and ast.unparse(f).endswith(GRADIENTS)]
        yield from map(ast.unparse, steps)


def named_for_a_noun(source: Source) -> Iterator[str]:
    yield from (part for part in Path(source.path).with_suffix("").parts if part.strip("_") in FORBIDDEN_NAMES)


def short(source: Source) -> Iterator[str]:
    lines, most = source.text.count("\n"), 60 if source.path == "crossward/methods/scaffold.py" else 299
    if lines > most:
        yield f"{lines} lines, {most} are allowed"


RULES: tuple[Rule, ...] = (
    arrows, no_torchvision, no_pickle, no_hidden_state, one_training_loop, named_for_a_noun, short,
)  # fmt: skip


def sources() -> Iterator[Source]:
    for folder in ("crossward", "tests", "benchmarks"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            yield Source(file.relative_to(ROOT).as_posix(), file.read_text(encoding="utf-8"))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_source_keeps_the_rule(rule: Rule):
    offences = [f"{source.path}: {told}" for source in sources() for told in rule(source)]
    assert not offences, "\n".join(offences)


def test_the_source_is_found():
    found = {source.path for source in sources()}
    assert {"crossward/core/loop.py", "crossward/methods/scaffold.py", "tests/testing/test_architecture.py"} <= found


@pytest.mark.parametrize(
    ("rule", "path", "text"),
    [
        (arrows, "crossward/core/run.py", "from crossward.engines.local import LocalEngine"),
        (arrows, "crossward/core/run.py", "from crossward import engines"),
        (arrows, "crossward/core/run.py", "import crossward"),
        (arrows, "crossward/core/run.py", "from ..names import nearest"),
        (arrows, "crossward/core/run.py", "def f():\n    import crossward.nets"),
        (arrows, "crossward/methods/fedx.py", "from crossward.engines.local import LocalEngine"),
        (arrows, "crossward/methods/fedx.py", "from crossward.nets.resnet import resnet18"),
        (arrows, "crossward/methods/fedx.py", "from crossward.data.federation import Federation"),
        (arrows, "crossward/methods/fedx.py", "from crossward.tasks.segmentation import Segmentation"),
        (arrows, "crossward/plugins/fedx.py", "from crossward.methods.fedprox import FedProx"),
        (arrows, "crossward/engines/pool.py", "from crossward.methods import METHODS"),
        (arrows, "crossward/report/page.py", "from crossward.core.tree import decode"),
        (no_torchvision, "crossward/nets/resnet.py", "def f():\n    from torchvision.models import resnet18"),
        (no_pickle, "crossward/core/tree.py", "import pickle"),
        (no_pickle, "crossward/core/tree.py", "from pickle import loads"),
        (no_pickle, "crossward/core/tree.py", "import torch\nx = torch.load('a')"),
        (no_pickle, "crossward/core/tree.py", "from torch import load"),
        (no_pickle, "crossward/text/x.py", "import torch\nx = torch.load('a', weights_only=False)"),
        (no_pickle, "crossward/text/x.py", "import torch\nx = torch.load\ny = x('a', weights_only=True)"),
        (no_pickle, "crossward/data/sources/npz.py", "import numpy as np\nx = np.load('a', allow_pickle=True)"),
        (no_hidden_state, "crossward/report/page.py", "def f():\n    global x\n    x = 1"),
        (no_hidden_state, "crossward/methods/fedx.py", "board = {1: 2}"),
        (no_hidden_state, "crossward/methods/fedx.py", "board: dict = dict(a=1)"),
        (no_hidden_state, "crossward/methods/fedx.py", "BOARD = {}"),
        (no_hidden_state, "crossward/methods/fedx.py", "BOARD = defaultdict(list)"),
        (no_hidden_state, "crossward/methods/fedx.py", "if True:\n    seen = set()"),
        (no_hidden_state, "crossward/plugins/x.py", "BOARD = {'c': 0}\ndef f():\n    BOARD['c'] = 1"),
        (no_hidden_state, "crossward/core/x.py", "BOARD = [1]\ndef f():\n    BOARD.append(1)"),
        (one_training_loop, "crossward/methods/fedx.py", "loss.backward()"),
        (one_training_loop, "crossward/methods/fedx.py", "torch.autograd.grad(loss, weights)"),
        (named_for_a_noun, "crossward/methods/utils.py", ""),
        (named_for_a_noun, "crossward/common/tree.py", ""),
        (short, "crossward/core/x.py", "\n" * 300),
        (short, "crossward/methods/scaffold.py", "\n" * 61),
    ],
)
def test_the_rule_catches(rule: Rule, path: str, text: str):
    assert list(rule(Source(path, text)))


@pytest.mark.parametrize(
    ("rule", "path", "text"),
    [
        (
            arrows,
            "crossward/core/run.py",
            "from crossward.core import select\nfrom crossward.errors import RunError",
        ),
        (arrows, "crossward/methods/fedx.py", "from crossward import losses\nfrom crossward.nets.parts import Bypass"),
        (
            arrows,
            "crossward/methods/fedx.py",
            "from crossward.nets import parts\nfrom crossward.methods.a import A",
        ),
        (arrows, "crossward/cli/main.py", "from crossward.report import page"),
        (no_pickle, "crossward/engines/pool.py", "import pickle"),
        (no_pickle, "benchmarks/overhead.py", "import torch\nx = torch.load('a')"),
        (no_pickle, "crossward/core/tree.py", "from safetensors.torch import load"),
        (no_pickle, "crossward/text/x.py", "import torch\nx = torch.load('a', weights_only=True)"),
        (no_pickle, "crossward/data/sources/npz.py", "x = np.load('a', allow_pickle=False)"),
        (
            no_hidden_state,
            "crossward/methods/fedx.py",
            "SIZES = {'a': 1}\nWORDS = set(TEXT)\nTree = dict[str, int]\n__all__ = ['a']",
        ),
        (no_hidden_state, "crossward/methods/fedx.py", "def f():\n    board = {}\n    board['a'] = 1"),
        (short, "crossward/core/x.py", "\n" * 299),
    ],
)
def test_the_rule_lets_pass(rule: Rule, path: str, text: str):
    assert not list(rule(Source(path, text)))
