#!/usr/bin/env python3
"""fetch_nvcc.py FOLDER REQUIREMENTS: nvcc from PyPI's wheels, pinned by their hashes; prints where it is.

That is a folder in FOLDER for these requirements: clones with others have their own, and what is complete does not
change. 105 MB, of which 170 MB remain on the disk: what compiling does not need is left out. If it cannot be
fetched, says why in one line.
"""

import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile

# nvlink, for device code in several objects; the compiler as a library.
UNUSED = ("bin/nvlink", "lib/libnvvm.so", "include/nvvm.h", ".metadata/")
TOOLKIT = "nvidia/cu13/"


def unpack(wheel: pathlib.Path, folder: pathlib.Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            name = member.filename
            if name.startswith(TOOLKIT):
                name = name[len(TOOLKIT):]
            elif ".dist-info/licenses/" in name:
                name = "licenses/" + wheel.name.partition("-")[0] + "-" + name.rpartition("/")[2]
            else:
                continue
            if not name or name.endswith("/") or name.startswith(UNUSED):
                continue
            file = folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(member) as source, file.open("wb") as target:
                shutil.copyfileobj(source, target)
            # zipfile forgets who may execute it; the wheels let only their owner.
            file.chmod(0o755 if member.external_attr >> 16 & 0o100 else 0o644)


def fetch(folder: pathlib.Path, requirements: pathlib.Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=folder.name + ".") as scratch:
        wheels, unpacked = pathlib.Path(scratch, "wheels"), pathlib.Path(scratch, "toolkit")
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
               "--retries", "1", "--no-deps", "--only-binary=:all:", "--require-hashes",
               "--dest", str(wheels), "--requirement", str(requirements)]
        said = subprocess.run(pip, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if said.returncode != 0:
            lines = [line for line in said.stdout.splitlines() if line.strip()]
            errors = [line for line in lines if line.startswith("ERROR")] or lines
            sys.exit("pip: " + (errors[-1] if errors else f"exit status {said.returncode}"))
        for wheel in sorted(wheels.iterdir()):
            unpack(wheel, unpacked)
        unpacked.chmod(0o755)
        try:
            unpacked.rename(folder)
        except OSError:
            if not folder.exists():  # else another fetch came first
                raise


def main() -> None:
    folders, requirements = (pathlib.Path(os.path.abspath(argument)) for argument in sys.argv[1:])
    try:
        folder = folders / hashlib.sha256(requirements.read_bytes()).hexdigest()[:16]
        if not folder.exists():
            fetch(folder, requirements)
    except (OSError, zipfile.BadZipFile) as error:
        sys.exit(str(error))
    print(folder)


if __name__ == "__main__":
    main()
