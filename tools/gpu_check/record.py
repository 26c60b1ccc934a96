"""What gpu_check keeps from call to call: the JSON file and the archive, each written atomically; a module of
gpu_check."""
import io
import json
import re
import tarfile
import zlib

from runner import Failed

MAX_BYTES = 400_000  # of a file in the archive, which keeps the end of longer ones


def replace(path, data):
    whole = path.with_name(path.name + ".new")
    whole.write_bytes(data)
    whole.replace(path)


class Record:
    """The results of one build on one kind of machine; the file may also have others."""

    def __init__(self, path, kind, build):
        self.path = path
        self.archive = path.with_suffix(".tar.gz")
        key = f"{kind}, build {build}"
        self.folder = re.sub(r"[^\w.]+", "-", key)
        self._files = {}
        try:
            self._all = json.loads(path.read_text()) if path.exists() else {}
            # The state of each slice, by name.
            self.slices = self._all.setdefault(key, {})
            if self.archive.exists():
                with tarfile.open(self.archive) as tar:
                    self._files = {member.name: tar.extractfile(member).read() for member in tar if member.isfile()}
        except (OSError, ValueError, AttributeError, EOFError, zlib.error, tarfile.TarError) as error:
            raise Failed(f"{path} or {self.archive} was not written by gpu_check: {error}",
                         fix="choose another --out") from None

    def write(self):
        replace(self.path, (json.dumps(self._all, indent=1) + "\n").encode())

    def keep(self, name, files):
        """Puts a slice's files into the archive, in place of its earlier ones; returns their folder there."""
        folder = f"{self.folder}/{name.replace('/', '-')}"
        for old in [old for old in self._files if old.startswith(folder + "/")]:
            del self._files[old]
        for file, data in files.items():
            cut = b"" if len(data) <= MAX_BYTES else b"... (the end of a longer file)\n"
            self._files[f"{folder}/{file}"] = cut + data[-MAX_BYTES:]
        return folder

    def write_archive(self):
        """Writes the archive, with the current JSON file."""
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=6) as tar:
            for name, data in {**dict(sorted(self._files.items())), self.path.name: self.path.read_bytes()}.items():
                member = tarfile.TarInfo(name)
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
        replace(self.archive, buffer.getvalue())
