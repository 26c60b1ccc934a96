# What make_bundle.sh and release/make_release.sh share.

# newest_version PREFIX FILE...: the latest version of these symbols (GLIBC, GLIBCXX) that any of the files needs.
newest_version() {
  local prefix=$1
  shift
  objdump -T "$@" | grep -o "\b${prefix}_[0-9.]*" | sed "s/.*_//" | sort -uV | tail -n 1
}

# pack FOLDER OUTPUT.tar.gz [LEVEL]: the folder under its own name; equal files give equal bytes.
pack() {
  tar --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 -C "$(dirname "$1")" -c "$(basename "$1")" |
    gzip -${3:-9}n >"$2"
}
