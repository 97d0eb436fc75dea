"""What a method or plugin is, read from its source file without importing it: importing torch takes seconds."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from crossward.core import disclosure

COMMENT = re.compile(r"#\s*(.+?)\s*$")


@dataclass(frozen=True)
class Option:
    name: str
    kind: str
    default: str
    meaning: str


@dataclass
class Description:
    name: str
    title: str  # the first line of the file's docstring
    docstring: str  # the whole of it: citation, symbols, departures
    options: list[Option] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)  # discloses, tasks, needs, pooled, personalises ...


def describe(name: str, module: str, attribute: str) -> Description:
    """The class and what it inherits, base first, as Python would resolve it."""
    tree = _parsed(module)
    docstring = ast.get_docstring(tree) or ""
    made = Description(name, docstring.split("\n")[0].strip(), docstring)
    _gather(module, attribute, made)
    return made


def _gather(module: str, attribute: str, into: Description) -> None:
    tree = _parsed(module)
    node = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == attribute)
    for base in node.bases:
        if isinstance(base, ast.Name) and (home := _home(tree, base.id)):
            _gather(home, base.id, into)
    source = _source(module).splitlines()
    for line in node.body:
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and line.value is not None:
            kind, value = ast.unparse(line.annotation), ast.unparse(line.value)
            if kind.startswith("ClassVar"):
                into.facts[line.target.id] = _fact(line.value)
            else:
                comment = COMMENT.search(source[(line.end_lineno or line.lineno) - 1])
                option = Option(
                    line.target.id, _plain(line.annotation, _named(tree)), value, comment[1] if comment else ""
                )
                into.options = [o for o in into.options if o.name != option.name] + [option]


def _fact(value: ast.expr) -> Any:
    if isinstance(value, ast.Dict) and all(map(_is_disclosure, value.values)):
        keys = [ast.literal_eval(key) for key in value.keys if key is not None]
        return dict(zip(keys, map(_disclosed, value.values), strict=True))
    try:
        return ast.literal_eval(value)
    except ValueError:  # such as frozenset({Need.SAME_NETS}) or select.nothing
        return [n.attr for n in ast.walk(value) if isinstance(n, ast.Attribute)]


def _is_disclosure(value: ast.expr) -> bool:
    if isinstance(value, ast.Call):
        return ast.unparse(value.func) == "Disclosure"
    return isinstance(value, ast.Name) and isinstance(getattr(disclosure, value.id, None), disclosure.Disclosure)


def _disclosed(value: ast.expr) -> str:
    """In words: of Disclosure(kind, "words"), or of a constant of core/disclosure.py."""
    if isinstance(value, ast.Call):
        return str(ast.literal_eval(value.args[1]))
    assert isinstance(value, ast.Name)
    known: disclosure.Disclosure = getattr(disclosure, value.id)
    return known.what


def _plain(kind: ast.expr, names: Mapping[str, ast.expr]) -> str:
    """Annotated[float, Ge(0)] -> float, at least 0; Literal['a', 'b'] -> 'a' | 'b'; `names` are the module's own."""
    if isinstance(kind, ast.Name) and kind.id in names:
        return _plain(names[kind.id], names)
    if isinstance(kind, ast.BinOp):
        return f"{_plain(kind.left, names)} | {_plain(kind.right, names)}"
    if isinstance(kind, ast.Subscript):
        inside = kind.slice.elts if isinstance(kind.slice, ast.Tuple) else [kind.slice]
        match ast.unparse(kind.value):
            case "Annotated":
                return ", ".join([_plain(inside[0], names), *map(_bound, inside[1:])])
            case "Literal":
                return " | ".join(map(ast.unparse, inside))
            case "tuple":
                return f"several of: {_plain(inside[0], names)}"
    return ast.unparse(kind)


def _bound(mark: ast.expr) -> str:
    words = {"Ge": "at least", "Gt": "above", "Le": "at most", "Lt": "below", "MinLen": "of length at least"}
    text = ast.unparse(mark)
    for name, word in words.items():
        text = re.sub(rf"\b{name}\(([^)]*)\)", rf"{word} \1", text)
    return text


def _named(tree: ast.Module) -> dict[str, ast.expr]:
    """Kinds that the module has a name of its own for, such as Count = Annotated[int, Ge(1)]."""
    found = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id] = node.value
    return found


def _home(tree: ast.Module, name: str) -> str | None:
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module and any(a.name == name for a in node.names):
            return node.module if node.module.startswith("crossward") else None
    return None


def _parsed(module: str) -> ast.Module:
    return ast.parse(_source(module))


def _source(module: str) -> str:
    found = find_spec(module)
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).read_text(encoding="utf-8")
