"""The sources of the product as syntax trees, parsed once in each process for all tests that look at them."""

from __future__ import annotations

import ast
import functools
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("chaos", "harness", "mecefo_chaos", "mecefo_runtime", "benchmarks", "dashboards", "manual")


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


SOURCES = {module_name(path): path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))}


@functools.cache
def trees() -> Mapping[str, ast.Module]:
    """By module; not parsed where only other tests are run."""
    return {module: ast.parse(path.read_text(encoding="utf-8")) for module, path in SOURCES.items()}


@functools.cache
def nodes(module: str) -> tuple[ast.AST, ...]:
    """All nodes of a module, as `ast.walk` gives them."""
    return tuple(ast.walk(trees()[module]))
