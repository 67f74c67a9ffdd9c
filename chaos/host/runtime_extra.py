"""The extra `runtime`: what the built-in job needs, and a command in front of your own script does not."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

from chaos.errors import EnvironmentFailure

INSTALL = "pip install 'mecefo-chaos[runtime]'"
# By the names by which they are imported. `isal`, which the extra has too, is optional.
PACKAGES = ("torch", "scipy", "safetensors")


def require_runtime(what: str, packages: Sequence[str] = PACKAGES) -> None:
    """Refuse `what` where a package that it needs is not installed.

    Raises:
        EnvironmentFailure: some of `packages` are not installed.
    """
    if lacking := [name for name in packages if not _is_installed(name)]:
        raise EnvironmentFailure(_sentence(what, lacking))


def why_not_imported(error: BaseException) -> str | None:
    """The sentence about a package of the extra that is not installed; None: `error` is another one."""
    name = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    return _sentence("this command", [name]) if name in PACKAGES else None


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _sentence(what: str, lacking: Sequence[str]) -> str:
    return (
        f"{what} needs {_listed(lacking)}, not installed beside chaos: type {INSTALL}. "
        "Your own script needs nothing: chaos run FAULT -- COMMAND"
    )


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
