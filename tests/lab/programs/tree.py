"""A rank that tells what is in its working folder: `path kind mode content` per line, as JSON."""

import hashlib
import json
import os
import stat
import sys

top = sys.argv[1] if len(sys.argv) > 1 else "."
rows = []
for folder, folders, files in os.walk(os.fsencode(top)):
    for name in folders + files:
        path = os.path.join(folder, name)
        found = os.lstat(path)
        told = ""
        if stat.S_ISLNK(found.st_mode):
            kind, told = "link", os.readlink(path).decode(errors="surrogateescape")
        elif stat.S_ISDIR(found.st_mode):
            kind = "folder"
        else:
            kind, told = "file", hashlib.sha256(open(path, "rb").read()).hexdigest()
        shown = os.path.relpath(path, os.fsencode(top)).decode(errors="surrogateescape")
        mode = 0o777 if kind == "link" else stat.S_IMODE(found.st_mode)
        rows.append([shown, kind, mode, told])
print(json.dumps(sorted(rows)), flush=True)
