"""The package's modules import each other without cycles, even inside functions."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import hoplite

ROOT = Path(hoplite.__file__).parent


def name_of(file: Path) -> str:
    return ".".join(("hoplite", *file.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")


def imported(tree: ast.AST, known: set[str]) -> Iterator[str]:
    """The modules that a module imports when it runs. Imports only for type checkers do not count."""
    for node in ast.iter_child_nodes(tree):
        match node:
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                pass
            case ast.Import():
                yield from (alias.name for alias in node.names if alias.name in known)
            case ast.ImportFrom(module=str(module)) if module in known:
                inner = {f"{module}.{alias.name}" for alias in node.names}
                yield from inner & known
                if inner - known:
                    yield module
            case _:
                yield from imported(node, known)


def test_imports_have_no_cycles() -> None:
    files = {name_of(file): file for file in ROOT.rglob("*.py")}
    assert "hoplite.ray.values.handles" in files
    known = {*files, "hoplite._hoplite"}
    imports = {name: set(imported(ast.parse(file.read_text()), known)) for name, file in files.items()}
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        raise AssertionError(" -> ".join(error.args[1])) from None
