# For scripts to source: where the system's CUDA toolkit is, by the rule of bazel/cuda_repository.bzl.

# find_toolkit FILE: prints the first folder that has the file ("bin/nvcc", "include/cudnn.h"), or nothing. An nvcc
# older than CUDA 13 does not count.
find_toolkit() {
  local home version
  for home in "${CUDA_HOME:-}" /usr/local/cuda /usr /opt/cuda; do
    [[ -n $home && -e $home/$1 ]] || continue
    if [[ $1 == bin/nvcc ]]; then
      version=$("$home/bin/nvcc" --version 2>/dev/null | sed -n 's/.*release \([0-9]*\).*/\1/p' || true)
      ((${version:-0} >= 13)) || continue
    fi
    echo "$home"
    return
  done
}
