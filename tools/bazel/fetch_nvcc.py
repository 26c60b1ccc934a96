#!/usr/bin/env python3
"""fetch_nvcc.py FOLDER REQUIREMENTS: nvcc from PyPI's wheels, pinned by their hashes, into FOLDER.

105 MB, of which 170 MB remain on the disk: what compiling does not need is left out. Does nothing if the folder
holds the same wheels already. If it cannot, says why in one line and leaves the folder as it was.
"""

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
        shutil.copyfile(requirements, unpacked / "requirements.txt")
        unpacked.chmod(0o755)
        shutil.rmtree(folder, ignore_errors=True)
        try:
            unpacked.rename(folder)
        except OSError:  # another fetch came first
            if not same(folder, requirements):
                raise


def same(folder: pathlib.Path, requirements: pathlib.Path) -> bool:
    wanted = folder / "requirements.txt"
    return wanted.exists() and wanted.read_bytes() == requirements.read_bytes()


def main() -> None:
    folder, requirements = (pathlib.Path(os.path.abspath(argument)) for argument in sys.argv[1:])
    if same(folder, requirements):
        return
    try:
        fetch(folder, requirements)
    except (OSError, zipfile.BadZipFile) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
