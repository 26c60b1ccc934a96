#!/usr/bin/env python3
"""A disk that is slow: a folder with one file, of which each page takes a while to read.

    slow_disk.py FILE FOLDER MILLISECONDS SLOW

mounts over FOLDER (FUSE, in the caller's mount namespace) a file system with FILE in it, and serves it until
it is killed. While the file SLOW exists, each read of 4 KiB takes that long, and what was read is forgotten
twice a second. Needs /dev/fuse, and the right to mount.
"""
import ctypes
import errno
import os
import stat
import struct
import sys
import threading
import time

LOOKUP, FORGET, GETATTR, OPEN, READ, RELEASE, FLUSH, INIT, OPENDIR, READDIR, RELEASEDIR = (
    1, 2, 3, 14, 15, 18, 25, 26, 27, 28, 29)
INTERRUPT, BATCH_FORGET = 36, 42
ROOT, INODE = 1, 2
INVALIDATE = 2  # a notification


def main():
    source, folder, delay, slow = sys.argv[1], sys.argv[2], float(sys.argv[3]) / 1e3, sys.argv[4]
    name = os.path.basename(source).encode()
    data, size = os.open(source, os.O_RDONLY), os.path.getsize(source)
    fuse = os.open("/dev/fuse", os.O_RDWR)
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"fd={fuse},rootmode=40755,user_id={os.getuid()},group_id={os.getgid()},allow_other"
    if libc.mount(b"slow_disk", folder.encode(), b"fuse", 0, options.encode()) != 0:
        sys.exit(f"slow_disk: no FUSE here: {os.strerror(ctypes.get_errno())}")

    def attributes(node):
        is_root = node == ROOT
        mode = stat.S_IFDIR | 0o755 if is_root else stat.S_IFREG | 0o444
        length = 0 if is_root else size
        return struct.pack("<6Q10I", node, length, (length + 511) // 512, 0, 0, 0, 0, 0, 0,
                           mode, 1, 0, 0, 0, 4096, 0)

    def answer(code, node, body):
        """The answer's bytes, or an error's negative number."""
        if code == INIT:
            ahead = 4096  # no more than a page is read at a time
            return struct.pack("<4IHHIIHH8I", 7, 31, ahead, 0, 12, 9, 4096, 1, 0, 0, *[0] * 8)
        if code == LOOKUP:
            if node != ROOT or body.rstrip(b"\0") != name:
                return -errno.ENOENT
            return struct.pack("<4QII", INODE, 0, 3600, 3600, 0, 0) + attributes(INODE)
        if code == GETATTR:
            return struct.pack("<QII", 3600, 0, 0) + attributes(node)
        if code in (OPEN, OPENDIR):
            return struct.pack("<QII", 0, 0, 0)
        if code == READ:
            offset, length = struct.unpack_from("<QI", body, 8)
            if os.path.exists(slow):
                time.sleep(delay * max(1, length // 4096))
            return os.pread(data, length, offset)
        if code == READDIR:
            return b""
        if code in (RELEASE, RELEASEDIR, FLUSH):
            return b""
        return -errno.ENOSYS

    def forget():
        while True:
            time.sleep(0.5)
            if os.path.exists(slow):
                note = struct.pack("<Qqq", INODE, 0, 0)
                try:
                    os.write(fuse, struct.pack("<IiQ", 16 + len(note), INVALIDATE, 0) + note)
                except OSError:  # nothing of it is in memory
                    pass

    threading.Thread(target=forget, daemon=True).start()
    while True:
        try:
            request = os.read(fuse, 1 << 17)
        except OSError as e:
            if e.errno in (errno.EINTR, errno.ENOENT):
                continue
            return  # unmounted
        _, code, unique, node = struct.unpack_from("<IIQQ", request)
        if code in (FORGET, BATCH_FORGET, INTERRUPT):
            continue
        reply = answer(code, node, request[40:])
        error, reply = (reply, b"") if isinstance(reply, int) else (0, reply)
        os.write(fuse, struct.pack("<IiQ", 16 + len(reply), error, unique) + reply)


main()
