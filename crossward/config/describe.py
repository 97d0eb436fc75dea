"""Descriptions of methods and plugins, read from their source without importing them: importing torch takes seconds."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from crossward.core import disclosure
from crossward.core.disclosure import NO_RULE, Disclosure, Made, covered, uncovered
from crossward.names import module_source

COMMENT = re.compile(r"#\s*(.+?)\s*$")
BOUNDS = {"Ge": "at least", "Gt": "above", "Le": "at most", "Lt": "below", "MinLen": "of length at least"}


@dataclass(frozen=True)
class Option:
    """A field of a method or plugin."""

    name: str
    type: str  # in words, with its bounds
    default: str
    meaning: str  # the comment behind the field

    def document(self) -> dict[str, str]:
        return {"name": self.name, "kind": self.type, "default": self.default, "meaning": self.meaning}


@dataclass
class Description:
    """A method or plugin: what its file and its class say about it."""

    name: str
    title: str  # the first line of the file's docstring
    docstring: str  # the whole of it: citation, symbols, departures
    options: list[Option] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)  # discloses, tasks, needs, pooled, personalises ...
    sent: dict[str, Disclosure] = field(default_factory=dict)  # what a site sends, item by item

    def sent_items(self) -> str:
        """What a site sends, in words."""
        sometimes = self.facts.get("sometimes", ())
        items = [
            f"{'sometimes ' if item in sometimes else ''}{item} ({what})"
            for item, what in self.facts.get("discloses", {}).items()
        ]
        return "; ".join(items) or "nothing"

    def protection(self) -> list[str]:
        """Whether the rule that survives a minority of hostile sites covers the method, what it does not, and why."""
        if self.facts.get("pooled"):
            return ["It does not run across hospitals: it trains on all images in one place."]
        lines = []
        items = covered(self.sent)
        if items:
            lines.append(
                f"Across three or more hospitals a rule protects {_and(items)} from a minority of hostile ones."
            )
        for kind in dict.fromkeys(about.kind for about in uncovered(self.sent).values()):
            names = [item for item, about in self.sent.items() if about.kind == kind]
            lines.append(f"No rule protects {_and(names)}: {NO_RULE[kind]}. One hostile site can bend it.")
        return lines or ["Nothing that one site sends reaches another."]

    def made_of(self) -> list[str]:
        """What the items are made from that are more than weights and sizes, and what one image changes in them."""
        beside = {item: about for item, about in self.sent.items() if about.made not in (Made.WEIGHTS, Made.SIZE)}
        return [f"{item}: {about.made_in_words()}." for item, about in beside.items()]

    def document(self) -> dict[str, Any]:
        """All of it as JSON types."""
        protection = {
            "covered": covered(self.sent),
            "uncovered": list(uncovered(self.sent)),
            "words": self.protection(),
        }
        own = {key: value for key, value in asdict(self).items() if key != "sent"}
        accounting = {item: {"made": str(about.made), "bound": about.bound} for item, about in self.sent.items()}
        return (
            own
            | {"protection": protection, "accounting": accounting}
            | {"options": [option.document() for option in self.options]}
        )


def describe(name: str, module: str, class_name: str) -> Description:
    docstring = ast.get_docstring(_read_module(module).tree) or ""
    description = Description(name, docstring.split("\n")[0].strip(), docstring)
    _add_class(description, module, class_name)
    return description


class _Module(NamedTuple):
    lines: list[str]
    tree: ast.Module


def _read_module(name: str) -> _Module:
    source = module_source(name)
    return _Module(source.splitlines(), ast.parse(source))


def _add_class(description: Description, module_name: str, class_name: str) -> None:
    """Add the options and facts of a class; those of its bases come first, as in Python."""
    module = _read_module(module_name)
    definition = next(node for node in module.tree.body if isinstance(node, ast.ClassDef) and node.name == class_name)
    for base in definition.bases:
        if isinstance(base, ast.Name):
            base_module = _imported_from(module.tree, base.id)
            if base_module is not None:
                _add_class(description, base_module, base.id)
    for statement in definition.body:
        if isinstance(statement, ast.AnnAssign):
            _add_attribute(description, module, statement)


def _imported_from(tree: ast.Module, name: str) -> str | None:
    """The module of this package from which `name` is imported, if it is."""
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module and any(alias.name == name for alias in node.names):
            return node.module if node.module.startswith("crossward") else None
    return None


def _add_attribute(description: Description, module: _Module, statement: ast.AnnAssign) -> None:
    """Class variables are facts, the other attributes that have a default are options."""
    if not isinstance(statement.target, ast.Name) or statement.value is None:
        return
    name = statement.target.id
    if ast.unparse(statement.annotation).startswith("ClassVar"):
        description.facts[name] = _fact(statement.value)
        if name == "discloses":
            description.sent = _disclosures(statement.value)
        return
    last_line = module.lines[(statement.end_lineno or statement.lineno) - 1]
    comment = COMMENT.search(last_line)
    option = Option(
        name,
        _type_in_words(statement.annotation, _type_aliases(module.tree)),
        ast.unparse(statement.value),
        comment[1] if comment else "",
    )
    others = [other for other in description.options if other.name != name]
    description.options = [*others, option]


def _fact(value: ast.expr) -> Any:
    """The value of a class variable: disclosures in words, literals, else the names of the attributes in it."""
    if isinstance(value, ast.Dict) and all(map(_is_disclosure, value.values)):
        return {item: about.what for item, about in _disclosures(value).items()}
    try:
        return ast.literal_eval(value)
    except ValueError:  # such as frozenset({Need.SAME_NETS}) or select.nothing
        return [node.attr for node in ast.walk(value) if isinstance(node, ast.Attribute)]


def _is_disclosure(value: ast.expr) -> bool:
    if isinstance(value, ast.Call):
        return ast.unparse(value.func) == "Disclosure"
    return isinstance(value, ast.Name) and isinstance(getattr(disclosure, value.id, None), disclosure.Disclosure)


def _disclosures(value: ast.expr) -> dict[str, Disclosure]:
    """The value of a class variable `discloses`."""
    if not isinstance(value, ast.Dict):
        return {}
    keys = [ast.literal_eval(key) for key in value.keys if key is not None]
    return dict(zip(keys, map(_disclosure, value.values), strict=True))


def _disclosure(value: ast.expr) -> Disclosure:
    """Disclosure(kind, "words"), or a constant of core/disclosure.py."""
    if isinstance(value, ast.Call):
        kind, what = value.args
        more = {word.arg: _constant(word.value) for word in value.keywords if word.arg}
        return Disclosure(_constant(kind), _constant(what), **more)
    assert isinstance(value, ast.Name)
    constant: Disclosure = getattr(disclosure, value.id)
    return constant


def _constant(value: ast.expr) -> Any:
    """A literal, or a member of an enumeration of core/disclosure.py such as Made.SUM."""
    if isinstance(value, ast.Attribute) and isinstance(value.value, ast.Name):
        return getattr(disclosure, value.value.id)[value.attr]
    return ast.literal_eval(value)


def _and(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _type_in_words(annotation: ast.expr, aliases: Mapping[str, ast.expr]) -> str:
    """Annotated[float, Ge(0)] -> float, at least 0; Literal['a', 'b'] -> 'a' | 'b'."""
    if isinstance(annotation, ast.Name) and annotation.id in aliases:
        return _type_in_words(aliases[annotation.id], aliases)
    if isinstance(annotation, ast.BinOp):
        return f"{_type_in_words(annotation.left, aliases)} | {_type_in_words(annotation.right, aliases)}"
    if isinstance(annotation, ast.Subscript):
        arguments = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
        match ast.unparse(annotation.value):
            case "Annotated":
                return ", ".join([_type_in_words(arguments[0], aliases), *map(_bound_in_words, arguments[1:])])
            case "Literal":
                return " | ".join(map(ast.unparse, arguments))
            case "tuple":
                return f"several of: {_type_in_words(arguments[0], aliases)}"
    return ast.unparse(annotation)


def _bound_in_words(bound: ast.expr) -> str:
    text = ast.unparse(bound)
    for name, words in BOUNDS.items():
        text = re.sub(rf"\b{name}\(([^)]*)\)", rf"{words} \1", text)
    return text


def _type_aliases(tree: ast.Module) -> dict[str, ast.expr]:
    """Names that a module gives to types, such as Count = Annotated[int, Ge(1)]."""
    aliases = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            aliases[node.targets[0].id] = node.value
    return aliases
