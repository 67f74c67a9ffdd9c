"""Make a base for `docker/Dockerfile` on a machine that can reach no registry of images.

`VENV/bin/python docker/make_base.py --tag local/python:3.11` takes the Python that runs it, what the project requires
from the packages of its environment, and the system's programs from this machine's Debian packages; streams them to
`docker import`; and tries the image out. Then

    docker/build --build-arg BASE=local/python:3.11

builds as it does on python:3.11-slim, and downloads nothing.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import time
import tomllib
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path, PurePosixPath

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
# What python:3.11-slim has and an image is used with, and what link faults need.
DEBIAN_PACKAGES = (
    *("base-files", "base-passwd", "bash", "ca-certificates", "coreutils", "dash", "debianutils", "findutils", "grep"),
    *("gzip", "hostname", "iproute2", "iptables", "libc-bin", "mawk", "netbase", "nftables", "procps", "sed", "tar"),
    *("tzdata", "util-linux"),
    # What wheels load beside their own libraries.
    *("libc6", "libgcc-s1", "libstdc++6"),
)
# Without these nothing runs; of the others, what is missing here is missing there.
NEEDED_PACKAGES = {
    *("base-passwd", "coreutils", "dash", "libc6", "libstdc++6"),
    # docker/Dockerfile would install them with apt-get, which such a base lacks.
    *("iproute2", "iptables", "nftables", "procps", "util-linux"),
}
# Made when a package is installed, so that no package lists them; of accounts, those that every Debian has.
SYSTEM_FILES = {
    "/etc/passwd": "/usr/share/base-passwd/passwd.master",
    "/etc/group": "/usr/share/base-passwd/group.master",
    "/etc/nsswitch.conf": "/etc/nsswitch.conf",
    "/etc/ssl/certs/ca-certificates.crt": "/etc/ssl/certs/ca-certificates.crt",
}
PROGRAM_FOLDERS = ("/usr/bin", "/usr/sbin")
NOT_SYSTEM = re.compile(
    r"/(usr/share/(doc|man|info|locale|lintian|bug|bash-completion)|var/lib|etc/(init|rc|cron))|.*/gconv/"
)
NOT_PYTHON = re.compile(r"(site-packages|dist-packages|test|tests|idlelib|turtledemo|tkinter|config-[^/]*)(/|$)")
# 60 MB of C++ headers, and the tests: nobody compiles in the image.
NOT_PACKAGES = re.compile(r"torch/(include|test|share)/")
MERGED = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
EMPTY = {"tmp": 0o1777, "root": 0o700, "proc": 0o755, "sys": 0o755, "dev": 0o755, "run": 0o755, "etc": 0o755}
PATH = "/usr/local/bin:/usr/local/sbin:/usr/bin:/usr/sbin:/bin:/sbin"
PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
SITE_PACKAGES = f"usr/local/lib/{PYTHON}/site-packages"
EXECUTABLE_MAGIC = b"\x7fELF"
CHECK = "import ctypes, lzma, sqlite3, ssl, zlib; print('python', *__import__('sys').version_info[:3])"


class Image:
    """A tar stream of an image's files, each path once, whatever asks for it."""

    def __init__(self, stream: io.BufferedIOBase) -> None:
        self._tar = tarfile.TarFile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT)
        self._names: set[str] = set()
        self.programs: set[Path] = set()
        for name in MERGED:
            if (Path("/") / name).is_symlink():
                self.link(name, f"usr/{name}")
        for name, mode in EMPTY.items():
            self._folder(name, mode)

    def add(self, source: Path, name: str) -> None:
        """A file or a link, at `name` from the root; its folders too. Programs and libraries are remembered."""
        name = self._resolved(name)
        if not self._take(name):
            return
        info = self._tar.gettarinfo(source, name)
        info.uid = info.gid = 0
        info.uname = info.gname = "root"
        # Links between the names of one file would lead to names that are not taken along.
        if info.islnk():
            info.type, info.linkname, info.size = tarfile.REGTYPE, "", source.stat().st_size
        if not info.isreg():
            self._tar.addfile(info)
            return
        with source.open("rb") as file:
            if file.read(len(EXECUTABLE_MAGIC)) == EXECUTABLE_MAGIC:
                self.programs.add(source)
            file.seek(0)
            self._tar.addfile(info, file)

    def add_text(self, name: str, text: str, mode: int) -> None:
        """A file with this text."""
        if self._take(name):
            info = tarfile.TarInfo(name)
            info.size, info.mode, info.mtime = len(text.encode()), mode, int(time.time())
            self._tar.addfile(info, io.BytesIO(text.encode()))

    def link(self, name: str, target: str) -> None:
        """A symbolic link."""
        if self._take(name):
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.mtime = tarfile.SYMTYPE, target, int(time.time())
            self._tar.addfile(info)

    def close(self) -> None:
        """The end of the stream."""
        self._tar.close()

    def _resolved(self, name: str) -> str:
        """`name` with the links of its first folder followed: `lib/x` is `usr/lib/x` where /lib is a link."""
        first, _, rest = name.partition("/")
        return f"usr/{name}" if rest and first in MERGED and (Path("/") / first).is_symlink() else name

    def _take(self, name: str) -> bool:
        if name in self._names:
            return False
        for parent in reversed(PurePosixPath(name).parents[:-1]):
            self._folder(str(parent), 0o755)
        self._names.add(name)
        return True

    def _folder(self, name: str, mode: int) -> None:
        if name not in self._names:
            self._names.add(name)
            info = tarfile.TarInfo(name)
            info.type, info.mode, info.mtime = tarfile.DIRTYPE, mode, int(time.time())
            self._tar.addfile(info)


def system_files() -> list[str]:
    """The files of the Debian packages, as far as these are on this machine."""
    words = ["dpkg", "--listfiles", *DEBIAN_PACKAGES]
    listed = subprocess.run(words, env={**os.environ, "LC_ALL": "C"}, capture_output=True, text=True, check=False)
    missing = set(re.findall(r"'(\S+)' is not installed", listed.stderr))
    if needed := sorted(missing & NEEDED_PACKAGES):
        raise SystemExit(f"this machine lacks {', '.join(needed)}: apt-get install {' '.join(needed)}")
    if listed.returncode and not missing:
        raise SystemExit(listed.stderr.strip())
    return listed.stdout.splitlines()


def add_system(image: Image, files: Iterable[str]) -> None:
    """The programs of the Debian packages, and what stands in /etc for them."""
    for line in files:
        path = Path(line)
        if not NOT_SYSTEM.match(line) and (path.is_symlink() or path.is_file()):
            image.add(path, line.lstrip("/"))
    for name, source in SYSTEM_FILES.items():
        if Path(source).is_file():
            image.add(Path(source), name.lstrip("/"))
    # Names that update-alternatives made, such as that of iptables, of what is in the image.
    taken = {program.resolve() for program in image.programs}
    for path in (path for folder in PROGRAM_FOLDERS for path in sorted(Path(folder).iterdir())):
        if path.is_symlink() and str(path.readlink()).startswith("/etc/alternatives/") and path.resolve() in taken:
            image.add(path, str(path).lstrip("/"))
            image.add(path.readlink(), str(path.readlink()).lstrip("/"))


def add_python(image: Image) -> None:
    """The interpreter and its library, where python:3.11-slim has them."""
    image.add(Path(sys.executable).resolve(), f"usr/local/bin/{PYTHON}")
    for alias in ("python3", "python"):
        image.link(f"usr/local/bin/{alias}", PYTHON)
    library = Path(sysconfig.get_path("stdlib"))
    for path in files_below(library, NOT_PYTHON):
        image.add(path, f"usr/local/lib/{PYTHON}/{path.relative_to(library)}")


def find_packages(roots: Iterable[str]) -> dict[str, Distribution]:
    """The installed distributions that `roots` need, by their names."""
    added: dict[str, Distribution] = {}
    waiting = list(map(Requirement, roots))
    while waiting:
        requirement = waiting.pop()
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        wanted = [{"extra": extra} for extra in requirement.extras] or [{"extra": ""}]
        if name in added or (requirement.marker and not any(map(requirement.marker.evaluate, wanted))):
            continue
        try:
            found = added[name] = distribution(name)
        except PackageNotFoundError:
            raise SystemExit(
                f"{name} is not installed in {sys.prefix}: pip install '.[runtime]' -c constraints.txt first"
            ) from None
        waiting += [
            needed
            for needed in map(Requirement, found.requires or ())
            if needed.marker is None or any(map(needed.marker.evaluate, wanted))
        ]
    return added


def add_distribution(image: Image, found: Distribution) -> None:
    """Its modules, and the programs that it installs, with our interpreter in their first line."""
    scripts = Path(sysconfig.get_path("scripts"))
    for entry in found.files or ():
        path = Path(os.path.normpath(str(entry.locate())))
        if not path.is_file():
            continue
        if path.parent == scripts:
            if path.read_bytes().startswith(b"#!"):
                text = re.sub(r"^#!.*", f"#!/usr/local/bin/{PYTHON}", path.read_text(encoding="utf-8"), count=1)
                image.add_text(f"usr/local/bin/{path.name}", text, 0o755)
        elif not str(entry).startswith("..") and not NOT_PACKAGES.search(str(entry)):
            image.add(path, f"{SITE_PACKAGES}/{entry}")


def add_libraries(image: Image) -> None:
    """What the dynamic linker loads for all programs so far; what it does not find by itself there, where it does."""
    default = sysconfig.get_config_var("MULTIARCH")
    seen: set[str] = set()
    for program in sorted(image.programs):
        said = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=False).stdout
        # Libraries that a package brings along are in it already, and found by it.
        seen.update(path for path in re.findall(r"(/\S+) \(0x", said) if "site-packages" not in path)
    for line in sorted(seen):
        folder = line.rpartition("/")[0]
        is_system = folder.removeprefix("/usr") in (f"/lib/{default}", "/lib", "/lib64")
        image.add(Path(line).resolve(), line.lstrip("/") if is_system else f"usr/lib/{default}/{Path(line).name}")


def files_below(folder: Path, left_out: re.Pattern[str]) -> Iterator[Path]:
    """All files but those whose path from `folder` begins with what is left out."""
    for path in sorted(folder.rglob("*")):
        if not left_out.match(str(path.relative_to(folder))) and path.is_file():
            yield path


def requirements() -> list[str]:
    """What the project needs to run, and to be built into the image."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = pyproject["project"]
    runtime = project["optional-dependencies"]["runtime"]
    return [*project["dependencies"], *runtime, *pyproject["build-system"]["requires"], "pip"]


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tag", default=f"local/{PYTHON.replace('python', 'python:')}", help="default: %(default)s")
    parser.add_argument("--bare", action="store_true", help="Python and pip alone, as in a slim image")
    chosen = parser.parse_args()
    for program in ("docker", "dpkg", "ldd"):
        if shutil.which(program) is None:
            raise SystemExit(f"{program} is not here: this needs Docker, on Debian or what is made of it")
    started = time.monotonic()
    # What is missing is said before the import begins: half a stream would be one more error.
    files = system_files()
    packages = find_packages(["pip"] if chosen.bare else requirements())
    settings = [f"ENV PATH={PATH}", "ENV LANG=C.UTF-8", "ENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt"]
    changes = [word for setting in (*settings, 'CMD ["python3"]') for word in ("--change", setting)]
    words = ["docker", "import", *changes, "-", chosen.tag]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as importer:
        assert importer.stdin is not None
        image = Image(importer.stdin)  # type: ignore[arg-type]
        add_system(image, files)
        add_python(image)
        for found in packages.values():
            add_distribution(image, found)
        add_libraries(image)
        image.close()
        importer.stdin.close()
        if importer.wait():
            raise SystemExit("docker import failed")
    imports = "" if chosen.bare else "; import torch; print('torch', torch.__version__)"
    words = ["docker", "run", "--rm", "--network", "none", chosen.tag, "python3", "-c", CHECK + imports]
    tried = subprocess.run(words, capture_output=True, text=True, check=False)
    if tried.returncode:
        raise SystemExit(f"{chosen.tag} does not work: {tried.stderr.strip()}")
    size = subprocess.run(
        ["docker", "image", "inspect", "--format", "{{.Size}}", chosen.tag], capture_output=True, text=True, check=True
    )
    print(f"{chosen.tag}: {' '.join(tried.stdout.split())}, {len(packages)} packages,", end=" ")
    print(f"{int(size.stdout) / 1e6:.0f} MB, {time.monotonic() - started:.1f} s")


if __name__ == "__main__":
    main()
