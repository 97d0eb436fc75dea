"""The rules of the house, read off the source: who may import whom, and what no file may do. Each rule is a function
from a file to its offences, and each is shown to catch one."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FORBIDDEN_NAMES = {"utils", "base", "common", "helpers"}
CONTAINERS = {"list", "dict", "set", "defaultdict", "OrderedDict", "Counter", "deque", "bytearray"}
DISPLAYS = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)
MUTATORS = {"add", "append", "clear", "discard", "extend", "insert", "pop", "popitem", "remove", "setdefault", "update"}
GRADIENTS = (".backward", "autograd.grad")
TAKE_GRADIENTS = (
    "crossward/core/loop.py", "crossward/core/gradient_descent.py", "crossward/report/grad_cam.py",
    "crossward/audits/gradient_inversion.py", "crossward/testing/plain_rounds.py",
)  # fmt: skip
PACKAGE_FILE_LINES = 500  # past this, ask whether the file is still one noun
FUNCTION_LINES = 50
SCAFFOLD_LINES = 60  # our measure of the core: SCAFFOLD fits on a page
FOUNDATION = ("freed_memory", "errors", "names", "disk", "settings", "user_folders", "foreign", "__version__")
LEARNING = (*FOUNDATION, "core", "losses", "statistics")
ALGORITHMS = (*LEARNING, "nets.parts", "nets.requirements", "text", "plugins")
BELOW_CONFIG = (
    *LEARNING, "nets", "tasks", "data", "data.sources", "data.sources.phantom", "text", "methods", "plugins", "privacy",
)  # fmt: skip
BELOW_HOSPITALS = (*BELOW_CONFIG, "config", "engines", "runs")
# What each folder may import of the package, besides the modules of its own folder. A folder below it counts as another
# folder. Every folder and every top-level module has a row, lazy imports and imports by a string count as any other.
ARROWS: dict[str, tuple[str, ...]] = {
    "": ("runs.lifecycle", "runs.result", "studies.study", "cli.main"),  # crossward/__init__.py and __main__.py
    "errors": (),
    "names": ("errors",),
    "disk": ("errors",),
    "settings": ("errors",),
    "user_folders": (),
    "foreign": (),
    "freed_memory": (),
    "core": FOUNDATION,
    "losses": ("core",),
    "statistics": ("core",),
    "engines": (*FOUNDATION, "core"),
    "privacy": (*FOUNDATION, "core"),
    "nets": (*FOUNDATION, "core"),
    "nets.parts": (*FOUNDATION, "core"),
    "tasks": LEARNING,
    "text": (*FOUNDATION, "core"),
    "data": (*FOUNDATION, "core"),
    "data.sources": (*FOUNDATION, "core", "data", "data.sources.phantom"),
    "data.sources.phantom": (*FOUNDATION, "core", "data", "data.sources"),
    "data.doctor": (*FOUNDATION, "core", "data", "data.sources"),
    "data.datasets": (*FOUNDATION, "data", "data.sources"),
    "plugins": (*LEARNING, "nets.parts"),
    "methods": (*ALGORITHMS, "methods.fedbm", "methods.lc_fed", "methods.mh_pflgb"),
    "methods.fedbm": (*ALGORITHMS, "methods"),
    "methods.lc_fed": (*ALGORITHMS, "methods", "nets.segmentation_layers"),
    "methods.mh_pflgb": (*ALGORITHMS, "methods"),
    "config": BELOW_CONFIG,
    "runs": (*BELOW_CONFIG, "config", "engines", "runs.bundle_scripts", "runs.observers"),
    "runs.bundle_scripts": ("data.decode",),  # copied into MONAI bundles
    "runs.observers": (*FOUNDATION, "core", "config", "runs"),
    "hospitals": BELOW_HOSPITALS,
    "hospitals.flower": (*BELOW_HOSPITALS, "hospitals"),
    "comparison": (*FOUNDATION, "core", "nets", "methods.mh_pflgb", "runs"),
    "comparison.papers": (*FOUNDATION, "comparison", "nets", "runs"),
    "audits": (*BELOW_HOSPITALS, "hospitals", "comparison", "methods.fedbm"),
    "studies": (*BELOW_HOSPITALS, "comparison"),
    "report": (*BELOW_HOSPITALS, "data.doctor", "comparison", "audits", "studies", "report.sections"),
    "report.sections": (
        *BELOW_HOSPITALS,
        "comparison",
        "audits",
        "studies",
        "report",
        "hospitals.receipt_checks",
    ),
    "report.dashboard": (*FOUNDATION, "core", "runs", "hospitals.federation_state", "report"),
    "demo": (*BELOW_HOSPITALS, "comparison", "studies", "report"),
    "cli": (
        *BELOW_HOSPITALS,
        "audits",
        "data.doctor",
        "data.datasets",
        "demo",
        "comparison",
        "comparison.papers",
        "report",
        "report.dashboard",
        "hospitals",
        "hospitals.flower",
        "methods.mh_pflgb",
        "studies",
    ),
    "testing": (*BELOW_HOSPITALS, "audits", "comparison", "hospitals", "hospitals.flower", "cli", "nets.parts"),
}
MAY_IMPORT_FLWR = ("crossward/hospitals/flower/", "crossward/testing/", "tests/", "benchmarks/")
MAY_IMPORT_RAY = (*MAY_IMPORT_FLWR, "crossward/studies/ray_cluster.py")


@dataclass(frozen=True)
class Source:
    path: str  # from the root, "crossward/core/run.py"
    text: str

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(ast.parse(self.text)))

    @property
    def module(self) -> str:
        """crossward.core.run; of a package, the package itself."""
        parts = Path(self.path).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @property
    def folder(self) -> str:
        """The row of ARROWS that the file is under: "hospitals.flower", or a top-level module's own name."""
        rest = Path(self.path).with_suffix("").parts[1:]
        if len(rest) == 1 and rest[0] not in ("__init__", "__main__"):
            return rest[0]
        return ".".join(rest[:-1])

    @property
    def part(self) -> str:
        """What is directly below the package: core, methods, losses …; empty for tests and benchmarks."""
        first, *rest = Path(self.path).with_suffix("").parts
        return rest[0] if first == "crossward" else ""

    def imported(self, *, type_only: bool = True) -> Iterator[str]:
        """Whatever is imported, by its full name: `from a import b` is a.b. `type_only` includes imports that only a
        type checker sees."""
        skipped = set() if type_only else self._type_only()
        for node in self.nodes:
            if node in skipped:
                continue
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                at = Path(self.path).parts[: -node.level] if node.level else ()
                module = ".".join([*at, *([node.module] if node.module else [])])
                yield from (f"{module}.{alias.name}" for alias in node.names)

    def _type_only(self) -> set[ast.AST]:
        guards = [n for n in self.nodes if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING"]
        return {inner for guard in guards for statement in guard.body for inner in ast.walk(statement)}

    def named_in_strings(self) -> Iterator[str]:
        """Modules of the package that a string names, as in import_module("crossward.x") or `python -m crossward.x`;
        docstrings are prose."""
        prose = {id(node.value) for node in self.nodes if isinstance(node, ast.Expr)}
        for node in self.nodes:
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
                yield from re.findall(r"\bcrossward(?:\.[a-z_0-9]+)+", node.value)


Rule = Callable[[Source], Iterable[str]]


def within(module: str, parts: Iterable[str]) -> bool:
    return any(module == part or module.startswith(f"{part}.") for part in parts)


@cache
def modules() -> dict[str, Source]:
    return {source.module: source for source in sources() if source.part}


def resolve(name: str, known: Iterable[str]) -> str | None:
    """The module that a dotted name is, or is in."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        if (module := ".".join(parts[:length])) in known:
            return module
    return None


def folder_of(module: str, known: dict[str, Source]) -> str:
    return known[module].folder if module in known else module.removeprefix("crossward").lstrip(".")


def allows(row: tuple[str, ...], module: str, known: dict[str, Source]) -> bool:
    """Whether a row lists the module, or the folder that it is in; what lies below a listed folder is not listed."""
    name = module.removeprefix("crossward").lstrip(".")
    return name in row or folder_of(module, known) in row


def arrows(source: Source) -> Iterator[str]:
    if Path(source.path).parts[0] != "crossward":
        return
    if source.folder not in ARROWS:
        yield f"the folder {source.folder!r} has no row in ARROWS"
        return
    known = modules()
    for name in [*source.imported(), *source.named_in_strings()]:
        if not within(name, ["crossward"]):
            continue
        module = resolve(name, known)
        if module in (None, "crossward"):  # the version, or a word that only looks like a module
            continue
        if folder_of(module, known) != source.folder and not allows(ARROWS[source.folder], module, known):
            yield f"imports {name}"


def flwr_in_one_folder(source: Source) -> Iterator[str]:
    for package, allowed in (("flwr", MAY_IMPORT_FLWR), ("ray", MAY_IMPORT_RAY)):
        if not source.path.startswith(allowed):
            yield from (f"imports {name}" for name in source.imported() if within(name, [package]))


def no_torchvision(source: Source) -> Iterator[str]:
    yield from (f"imports {module}" for module in source.imported() if within(module, ["torchvision"]))


def no_pickle(source: Source) -> Iterator[str]:
    if not source.part:  # tests must make hostile files, benchmarks read what their peers wrote
        return
    allowed = ("engines/pool.py", "engines/pool_worker.py", "data/restricted_pickle.py")
    if source.path.removeprefix("crossward/") not in allowed:
        modules = ["pickle", "_pickle", "cloudpickle", "dill", "joblib", "shelve", "multiprocessing.reduction"]
        yield from (f"imports {module}" for module in source.imported() if within(module, modules))
    yield from ("torch.load" for module in source.imported() if module == "torch.load")
    safe = sum(isinstance(n, ast.Call) and loads_weights_only(n) for n in source.nodes)
    yield from ["torch.load"] * (sum(map(is_torch_load, source.nodes)) - safe)
    for node in source.nodes:
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle" and ast.unparse(node.value) != "False":
            yield "allow_pickle"


def is_torch_load(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "load" and ast.unparse(node) == "torch.load"


def loads_weights_only(call: ast.Call) -> bool:
    """torch.load(..., weights_only=True), which executes nothing of what it reads."""
    if not is_torch_load(call.func):
        return False
    return any(k.arg == "weights_only" and ast.unparse(k.value) == "True" for k in call.keywords)


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
    """A site's network takes its steps in loop.py, whatever a server fits in descent.py; Grad-CAM fits
    nothing, gradient inversion attacks the gradient itself, and plain rounds are what the loop is compared with."""
    if source.part and source.path not in TAKE_GRADIENTS:
        calls = [node.func for node in source.nodes if isinstance(node, ast.Call)]
        steps = [ast.unparse(f) for f in calls if isinstance(f, ast.Attribute) and f.attr in ("backward", "grad")]
        yield from (step for step in steps if step.endswith(GRADIENTS))


def named_for_a_noun(source: Source) -> Iterator[str]:
    yield from (part for part in Path(source.path).with_suffix("").parts if part.strip("_") in FORBIDDEN_NAMES)


def short_files(source: Source) -> Iterator[str]:
    if source.part:
        lines = source.text.count("\n")
        most = SCAFFOLD_LINES if source.path == "crossward/methods/scaffold.py" else PACKAGE_FILE_LINES
        if lines > most:
            yield f"{lines} lines, {most} are allowed"


def short_functions(source: Source) -> Iterator[str]:
    if source.part:
        for node in source.nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > FUNCTION_LINES:
                    yield f"{node.name} has {lines} lines, {FUNCTION_LINES} are allowed"


RULES: tuple[Rule, ...] = (
    arrows, flwr_in_one_folder, no_torchvision, no_pickle, no_hidden_state, one_training_loop, named_for_a_noun,
    short_files, short_functions,
)  # fmt: skip


def sources() -> Iterator[Source]:
    for folder in ("crossward", "tests", "benchmarks"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            yield Source(file.relative_to(ROOT).as_posix(), file.read_text(encoding="utf-8"))


@cache
def offences() -> dict[Rule, list[str]]:
    """What each rule finds. All of them look at a file before the next is parsed, which takes longest."""
    found: dict[Rule, list[str]] = {rule: [] for rule in RULES}
    for source in sources():
        for rule, lines in found.items():
            lines += [f"{source.path}: {offence}" for offence in rule(source)]
    return found


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_source_keeps_the_rule(rule: Rule):
    assert not offences()[rule], "\n".join(offences()[rule])


def test_every_row_is_a_folder_or_a_module():
    assert {*ARROWS} - {source.folder for source in sources() if source.part} == set()


def imports_by_module() -> dict[str, set[str]]:
    """Module -> the modules of the package that it imports when it runs, at once, later, or by a string."""
    known = modules()
    graph = {}
    for name, source in known.items():
        imported = [*source.imported(type_only=False), *source.named_in_strings()]
        targets = {resolve(each, known) for each in imported if within(each, ["crossward"])}
        graph[name] = {target for target in targets if target is not None} - {name, "crossward"}
    return graph


def cycle_in(graph: dict[str, set[str]]) -> list[str]:
    """A cycle, as the path that closes it; empty if there is none."""
    done: set[str] = set()

    def visit(node: str, path: list[str]) -> list[str]:
        if node in path:
            return [*path[path.index(node) :], node]
        if node in done:
            return []
        for target in sorted(graph.get(node, ())):
            if cycle := visit(target, [*path, node]):
                return cycle
        done.add(node)
        return []

    return next((cycle for node in sorted(graph) if (cycle := visit(node, []))), [])


def test_no_module_imports_itself_by_way_of_others():
    assert cycle_in(imports_by_module()) == []


def test_the_parts_of_the_package_form_no_cycle():
    parts = {part: set[str]() for part in ARROWS}
    for row, allowed in ARROWS.items():
        parts.setdefault(row.split(".")[0], set()).update(name.split(".")[0] for name in allowed)
    graph = {part: targets - {part, "__version__"} for part, targets in parts.items() if "." not in part}
    assert cycle_in(graph) == []


@pytest.mark.parametrize(
    ("graph", "cycle"),
    [
        ({"a": {"b"}, "b": {"c"}, "c": {"a"}}, ["a", "b", "c", "a"]),
        ({"a": {"b", "c"}, "b": {"c"}, "c": set()}, []),
        ({"a": {"a"}}, ["a", "a"]),
    ],
)
def test_a_cycle_is_found(graph, cycle):
    assert cycle_in(graph) == cycle


def test_the_source_is_found():
    found = {source.path for source in sources()}
    assert {"crossward/core/loop.py", "crossward/methods/scaffold.py", "tests/testing/test_architecture.py"} <= found


@pytest.mark.parametrize(
    ("rule", "path", "text"),
    [
        (arrows, "crossward/core/run.py", "from crossward.engines.local import LocalEngine"),
        (arrows, "crossward/core/run.py", "from crossward import engines"),
        (arrows, "crossward/core/run.py", "from ..nets import build"),
        (arrows, "crossward/core/run.py", "import_module('crossward.engines.local')"),
        (arrows, "crossward/core/run.py", "command = [sys.executable, '-m', 'crossward.cli.main']"),
        (arrows, "crossward/core/run.py", "CODE = 'from crossward.cli.main import main; main()'"),
        (arrows, "crossward/hospitals/service.py", "from crossward.hospitals.flower.engine import FlowerEngine"),
        (arrows, "crossward/data/cache.py", "from crossward.data.sources import pbc"),
        (arrows, "crossward/runs/build.py", "from crossward.hospitals.policy import Policy"),
        (arrows, "crossward/runs/build.py", "def f():\n    from crossward.cli.main import app"),
        (arrows, "crossward/novelty/x.py", ""),
        (flwr_in_one_folder, "crossward/hospitals/service.py", "def f():\n    from flwr.app import Message"),
        (arrows, "crossward/core/run.py", "def f():\n    import crossward.nets"),
        (arrows, "crossward/methods/fedx.py", "from crossward.engines.local import LocalEngine"),
        (arrows, "crossward/methods/fedx.py", "from crossward.nets.resnet import resnet18"),
        (arrows, "crossward/methods/fedx.py", "from crossward.data.federation import Federation"),
        (arrows, "crossward/methods/fedx.py", "from crossward.tasks.segmentation import Segmentation"),
        (arrows, "crossward/plugins/fedx.py", "from crossward.methods.fedprox import FedProx"),
        (arrows, "crossward/engines/pool.py", "from crossward.methods import METHODS"),
        (arrows, "crossward/comparison/reach.py", "from crossward.cli.main import app"),
        (arrows, "crossward/comparison/reach.py", "from crossward.studies.cells import Cell"),
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
        (short_files, "crossward/core/x.py", "\n" * 501),
        (short_files, "crossward/methods/scaffold.py", "\n" * 61),
        (short_functions, "crossward/core/x.py", "def f():\n" + "    a = 1\n" * 50),
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
        (arrows, "crossward/cli/runs.py", "from crossward.comparison import reach"),
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
        (short_files, "crossward/core/x.py", "\n" * 500),
        (short_files, "tests/core/test_x.py", "\n" * 2000),
        (short_functions, "crossward/core/x.py", "def f():\n" + "    a = 1\n" * 49),
    ],
)
def test_the_rule_lets_pass(rule: Rule, path: str, text: str):
    assert not list(rule(Source(path, text)))
