"""A digest of the sources that an image of the project was built from, to compare with the installed ones.

`python -m harness.backends.docker.image` prints the digest of the sources it stands among; given one, it
fails unless they are the same.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from docker import DockerClient
    from docker.models.images import Image

DEFAULT_IMAGE = "mecefo-chaos"
DIGEST_LABEL = "mecefo-chaos.source-digest"
# What is made in the engine to look at it carries this label until it is removed.
PURPOSE_LABEL = "mecefo-chaos.purpose"
ANSWER_TIMEOUT_SECONDS = 30
PACKAGES = ("chaos", "harness", "mecefo_chaos", "mecefo_runtime")
_DIGEST_DIGITS = 32


def python_command(module: str, *arguments: str) -> list[str]:
    """The words that run a module of ours in a container, whatever else is on the path of the image's Python.

    Without the working directory on it (-P): what is mounted there is not what the image was built from.
    """
    return ["python3", "-P", "-m", "mecefo_chaos.module", module, *arguments]


def source_digest() -> str:
    """The digest of all files of our packages (sources and data, not what Python compiled them to), 32 hex digits.

    It depends on their contents and their paths within the packages, not on where those are installed or when.
    """
    digest = hashlib.sha256()
    for package in PACKAGES:
        folder = _folder_of(package)
        for path in sorted(_files_below(folder), key=lambda path: path.relative_to(folder).as_posix()):
            content = path.read_bytes()
            digest.update(f"{package}/{path.relative_to(folder).as_posix()}\0{len(content)}\0".encode())
            digest.update(content)
    return digest.hexdigest()[:_DIGEST_DIGITS]


def image_digest(client: DockerClient, image: str = DEFAULT_IMAGE) -> str | None:
    """The digest of the sources in `image`; None where it has none that could be asked (another, or an older, image).

    Read from its label, which the build has checked, else from the image itself by running it (half a second).

    Raises:
        docker.errors.ImageNotFound: the engine has no such image.
        docker.errors.DockerException, requests.RequestException: the engine cannot be reached, refuses, or does not
            answer.
    """
    found = client.images.get(image)
    label = found.labels.get(DIGEST_LABEL)
    return str(label) if label else _ask(client, found)


def _ask(client: DockerClient, image: Image) -> str | None:
    from docker.errors import APIError

    # The image's own entry point, if it has one, might do something else with the words.
    python, *words = python_command("harness.backends.docker.image")
    container = client.containers.create(
        image,
        words,
        entrypoint=python,
        network_mode="none",
        read_only=True,
        cap_drop=["ALL"],
        labels={PURPOSE_LABEL: "digest"},
    )
    try:
        container.start()
        code = container.wait(timeout=ANSWER_TIMEOUT_SECONDS)["StatusCode"]
        word = bytes(container.logs(stdout=True, stderr=False)).decode(errors="replace").strip()
    except APIError as error:
        if error.is_client_error():
            # There is no Python in it.
            return None
        raise
    finally:
        container.remove(force=True)
    return word if code == 0 and len(word) == _DIGEST_DIGITS else None


def _folder_of(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ImportError(f"the package {package} is not installed")
    return Path(next(iter(spec.submodule_search_locations)))


def _files_below(folder: Path) -> list[Path]:
    def is_source(path: Path) -> bool:
        parts = path.relative_to(folder).parts
        return path.is_file() and not any(part == "__pycache__" or part.startswith(".") for part in parts)

    return [path for path in folder.rglob("*") if is_source(path)]


def main() -> int:
    """See the module; the exit code."""
    digest = source_digest()
    if len(sys.argv) == 1:
        print(digest)
        return 0
    if sys.argv[1] == digest:
        return 0
    print(f"the sources here have the digest {digest}, not {sys.argv[1]}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
