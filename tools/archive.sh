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

# copy_licenses FOLDER PACKAGE...: what these Debian packages say of their licences; repositories.bzl names those of
# which code lies in programs.
copy_licenses() {
  local folder=$1 package
  mkdir "$folder"
  shift
  for package in "$@" $(sed -nE 's/^ *apt = "(.*)",$/\1/p' "$(dirname "${BASH_SOURCE[0]}")/bazel/repositories.bzl" |
    tr ' ' '\n' | grep -v '^libg\(test\|mock\)-dev$'); do
    if [[ -f /usr/share/doc/$package/copyright ]]; then install -m 644 "/usr/share/doc/$package/copyright" "$folder/$package"; fi
  done
}
