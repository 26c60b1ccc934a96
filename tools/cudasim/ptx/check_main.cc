// Decodes all kernels of PTX files, and says which the machine cannot run, and why:
//   check FILE.ptx ...
// Fails if there is one.
#include <cstdio>
#include <fstream>
#include <iterator>

#include "tools/cudasim/ptx/image.h"

int main(int argc, char** argv) {
  using cudasim::ptx::Image;
  using cudasim::ptx::Unsupported;
  size_t kernels = 0, failed = 0, statements = 0, instructions = 0;
  for (int j = 1; j < argc; ++j) {
    std::ifstream file(argv[j]);
    if (!file) {
      std::fprintf(stderr, "%s cannot be read\n", argv[j]);
      return 1;
    }
    try {
      Image image(std::string(std::istreambuf_iterator<char>(file), {}));
      for (const auto& [name, function] : image.module().functions) {
        if (!function.entry) continue;
        ++kernels;
        try {
          const cudasim::ptx::Program* const program = image.FindKernel(name);
          statements += program->body.statements.size();
          instructions += program->code.size();
        } catch (const Unsupported& error) {
          ++failed;
          std::printf("%s: %s\n", argv[j], error.what());
        }
      }
    } catch (const Unsupported& error) {
      ++failed;
      std::printf("%s: %s\n", argv[j], error.what());
    }
  }
  std::printf("%zu of %zu kernels; %zu statements became %zu instructions\n", kernels - failed,
              kernels, statements, instructions);
  return failed == 0 ? 0 : 1;
}
