"""A net of the catalogue. Its description and options are read from its builder's source, without importing torch."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from crossward.core.image_size import Size, sides
from crossward.names import module_source, nearest

if TYPE_CHECKING:
    from crossward.core.net import Net

GIVEN_BY_THE_DATA = ("channels", "classes", "size")
TYPE_NAMES: Mapping[type, str] = MappingProxyType({
    bool: "true or false", int: "a whole number", float: "a number", str: "text",
})  # fmt: skip


@dataclass(frozen=True)
class CatalogueNet:
    """Where a net's builder stands, and the task whose logits the net gives.

    A builder takes channels, classes and size, and its own options, all by keyword; the options have literal defaults.
    """

    module: str
    function: str
    task: str
    both_sides: bool = False  # of images that are not square the builder must know both sides, not the shorter alone

    @cached_property
    def description(self) -> str:
        """The first line of the builder's docstring."""
        return (ast.get_docstring(self._definition) or "").partition("\n")[0].removesuffix(".")

    @cached_property
    def options(self) -> Mapping[str, Any]:
        """The builder's options with their defaults."""
        arguments = self._definition.args
        defaults = {
            argument.arg: ast.literal_eval(default)
            for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
            if argument.arg not in GIVEN_BY_THE_DATA and default is not None
        }
        return MappingProxyType(defaults)

    def problem(self, option: str, value: object) -> str:
        """Why the net cannot be built with this option; empty if it can."""
        if option not in self.options:
            return f"{option}: there is no such option. {nearest(option, self.options)}"
        expected = type(self.options[option])
        if expected in TYPE_NAMES and not _is_of_type(value, expected):
            return f"{option}: must be {TYPE_NAMES[expected]}, not {value!r}."
        return ""

    def build(self, *, channels: int, classes: int, size: Size, **options: Any) -> Net:
        builder = getattr(import_module(self.module), self.function)
        known = size if self.both_sides else min(sides(size))
        return cast("Net", builder(channels=channels, classes=classes, size=known, **options))

    @cached_property
    def _definition(self) -> ast.FunctionDef:
        tree = ast.parse(module_source(self.module))
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and node.name == self.function:
                return node
        raise ImportError(f"{self.module} defines no function {self.function}")


def _is_of_type(value: object, expected: type) -> bool:
    """A whole number serves as a number; true and false are no numbers."""
    if isinstance(value, bool):
        return expected is bool
    return isinstance(value, (int, float) if expected is float else expected)
