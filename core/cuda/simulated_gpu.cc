#include "core/cuda/simulated_gpu.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <string>
#include <string_view>

#include "core/cuda/backend.h"
#include "core/cuda/device.h"
#include "core/error.h"
#include "core/io/mapped_file.h"
#include "tools/cudasim/loader/loader.h"

// Defined by //kernels; null in a program without kernels.
extern "C" [[gnu::weak]] const char lockstep_simulated_gpu_stamp[];

namespace lockstep::cuda {
namespace {

const char* const kBuild = kProgramsContainKernels
                               ? "bazel build -c opt //tools/cudasim/ptx:libcudart.so.13"
                               : "bazel build -c opt //kernels:simulated_gpu";

// Empty if there is none.
std::string FindLibrary() {
  if (const char* path = std::getenv("LOCKSTEP_SIMULATED_GPU"); path != nullptr && *path != '\0') {
    return path;
  }
  std::error_code none;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", none);
  for (std::filesystem::path folder = program.parent_path(); folder.has_relative_path();
       folder = folder.parent_path()) {
    for (const char* file : {"libsimulated_gpu.so", "kernels/libsimulated_gpu.so"}) {
      if (std::filesystem::exists(folder / file, none)) return folder / file;
    }
  }
  // Where this code is in a shared library (//:release), the other one is in the same folder.
  static const char here = 0;
  if (Dl_info info; dladdr(&here, &info) != 0) {
    const auto beside =
        std::filesystem::path(info.dli_fname).replace_filename("libsimulated_gpu.so");
    if (std::filesystem::exists(beside, none)) return beside;
  }
  return "";
}

void Load() {
  const std::string path = FindLibrary();
  std::error_code none;
  if (!std::filesystem::exists(path, none)) {
    throw InputError(StrCat("--device=sim needs the simulated GPU; build it with ", kBuild,
                            " (or LOCKSTEP_SIMULATED_GPU=/path/to/libsimulated_gpu.so)"));
  }
  LS_INVARIANT(lockstep_simulated_gpu_stamp != nullptr || kProgramsContainKernels,
               "this program has no kernels");
  // Checked before it is loaded, so that no code of a stale library runs. A simulator without
  // kernels fits every program.
  const MappedFile file(path);
  const std::string_view bytes(reinterpret_cast<const char*>(file.bytes().data()),
                               file.bytes().size());
  if (kProgramsContainKernels && bytes.find("lockstep_simulated_gpu_stamp") != bytes.npos) {
    throw InputError(StrCat("--device=sim: the simulated GPU ", path,
                            " has kernels, and so has this program; build one without by ",
                            kBuild));
  }
  if (!kProgramsContainKernels && bytes.find(lockstep_simulated_gpu_stamp) == bytes.npos) {
    throw InputError(StrCat("--device=sim: the simulated GPU ", path,
                            " was built from other sources than this program; rebuild it with ",
                            kBuild));
  }
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    throw InputError(StrCat("--device=sim: cannot load the simulated GPU (", dlerror(),
                            "); rebuild it with ", kBuild));
  }
  if (const char* missing = cudasim::Connect(library)) {
    throw InputError(StrCat("--device=sim: the simulated GPU ", path, " has no ", missing,
                            "; rebuild it with ", kBuild));
  }
}

}  // namespace

void LoadSimulatedGpu() {
  static std::mutex loading;
  const std::lock_guard lock(loading);
  if (Simulated() && !cudasim::Connected()) Load();
}

}  // namespace lockstep::cuda
