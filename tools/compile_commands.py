#!/usr/bin/env python3
"""Writes compile_commands.json for clangd and clang-tidy: bazel run //tools:compile_commands

Arguments are passed on to bazel aquery, for example --config=cuda.
"""
import json
import os
import re
import subprocess
import sys

# Flags of g++ that clang does not know.
DROPPED = {"-fno-canonical-system-headers", "-Wno-free-nonheap-object", "-Wunused-but-set-parameter"}


def bazel(*arguments, cwd):
    command = [os.environ.get("BAZEL", "bazel"), *arguments]
    done = subprocess.run(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"compile_commands: {' '.join(command)} failed:\n{done.stderr}")
    return done.stdout


def entry(arguments, workspace, execution_root):
    """One entry of the compilation database, or None for a source outside of the workspace."""
    source = arguments[arguments.index("-c") + 1]
    if source.startswith("external/"):
        return None
    kept = []
    for argument in arguments:
        if argument in DROPPED:
            continue
        # Repositories are not reachable from the workspace's root; bazel-out is, by its link.
        kept.append(re.sub(r"^(-I|-isystem|-iquote)?external/",
                           lambda m: f"{m.group(1) or ''}{execution_root}/external/", argument))
    return {"directory": workspace, "file": source, "arguments": kept}


def main():
    workspace = os.environ.get("BUILD_WORKSPACE_DIRECTORY") or os.path.dirname(
        os.path.dirname(os.path.realpath(__file__)))
    options = sys.argv[1:]
    graph = json.loads(bazel("aquery", "--output=jsonproto", *options,
                             'mnemonic("(CppCompile|NvccCompile)", //...)', cwd=workspace))
    execution_root = bazel("info", "execution_root", cwd=workspace).strip()
    entries = {}
    for action in graph.get("actions", []):
        if "-c" not in action.get("arguments", []):
            continue
        made = entry(action["arguments"], workspace, execution_root)
        if made:
            entries[made["file"]] = made
    path = os.path.join(workspace, "compile_commands.json")
    with open(path + ".new", "w") as out:
        json.dump([entries[name] for name in sorted(entries)], out, indent=1)
    os.replace(path + ".new", path)
    print(f"compile_commands: {len(entries)} sources in {path}")


if __name__ == "__main__":
    main()
