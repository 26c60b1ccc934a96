// Names of functions from the program's symbol table, which also has static functions.
#include <cxxabi.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "report.h"

namespace cudasim {
namespace {

struct Module {
  uintptr_t address;  // the address to look up
  uintptr_t base = 0;
  std::string path;
};

int FindModule(dl_phdr_info* info, size_t, void* data) {
  auto* module = static_cast<Module*>(data);
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)& header = info->dlpi_phdr[i];
    const uintptr_t begin = info->dlpi_addr + header.p_vaddr;
    if (header.p_type == PT_LOAD && module->address >= begin &&
        module->address < begin + header.p_memsz) {
      module->base = info->dlpi_addr;
      module->path = info->dlpi_name[0] == '\0' ? "/proc/self/exe" : info->dlpi_name;
      return 1;
    }
  }
  return 0;
}

std::string Demangle(const char* name) {
  int status = 0;
  char* text = abi::__cxa_demangle(name, nullptr, nullptr, &status);
  std::string result = status == 0 ? text : name;
  std::free(text);
  return result;
}

std::string Find(const char* file, size_t bytes, uintptr_t value, bool within) {
  const auto* elf = reinterpret_cast<const ElfW(Ehdr)*>(file);
  if (bytes < sizeof(*elf) || std::memcmp(elf->e_ident, ELFMAG, SELFMAG) != 0 ||
      elf->e_shoff + sizeof(ElfW(Shdr)) * elf->e_shnum > bytes) {
    return "";
  }
  const auto* sections = reinterpret_cast<const ElfW(Shdr)*>(file + elf->e_shoff);
  for (int i = 0; i < elf->e_shnum; ++i) {
    if (sections[i].sh_type != SHT_SYMTAB) continue;
    const char* names = file + sections[sections[i].sh_link].sh_offset;
    const auto* symbols = reinterpret_cast<const ElfW(Sym)*>(file + sections[i].sh_offset);
    for (size_t s = 0; s < sections[i].sh_size / sizeof(ElfW(Sym)); ++s) {
      if (ELF64_ST_TYPE(symbols[s].st_info) != STT_FUNC) continue;
      const uintptr_t begin = symbols[s].st_value;
      if (begin == value || (within && begin <= value && value < begin + symbols[s].st_size)) {
        return Demangle(names + symbols[s].st_name);
      }
    }
  }
  return "";
}

}  // namespace

std::string SymbolAt(const void* address, bool within) {
  Module module{reinterpret_cast<uintptr_t>(address), 0, ""};
  dl_iterate_phdr(FindModule, &module);
  if (module.path.empty()) return "";
  const int file = open(module.path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return "";
  struct stat status;
  std::string name;
  if (fstat(file, &status) == 0) {
    const auto bytes = static_cast<size_t>(status.st_size);
    void* memory = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, file, 0);
    if (memory != MAP_FAILED) {
      name = Find(static_cast<const char*>(memory), bytes, module.address - module.base, within);
      munmap(memory, bytes);
    }
  }
  close(file);
  return name;
}

std::string SourceAt(const void* code) {
  Module module{reinterpret_cast<uintptr_t>(code) - 1, 0, ""};
  dl_iterate_phdr(FindModule, &module);
  char path[4096];
  const ssize_t length = readlink(module.path.c_str(), path, sizeof(path) - 1);
  if (length > 0) module.path.assign(path, static_cast<size_t>(length));
  char command[4300];
  std::snprintf(command, sizeof(command), "addr2line -i -e '%s' %#zx 2>/dev/null",
                module.path.c_str(), static_cast<size_t>(module.address - module.base));
  std::string text;
  if (FILE* lines = module.path.empty() ? nullptr : popen(command, "re"); lines != nullptr) {
    char line[1024];
    // One line per inlined call, the innermost first: "/folder/x.cuh:12 (discriminator 3)".
    while (std::fgets(line, sizeof(line), lines) != nullptr) {
      line[std::strcspn(line, " \n")] = '\0';
      if (std::strchr(line, '?') != nullptr || std::strstr(line, "cudasim/include/") != nullptr ||
          std::strstr(line, "/usr/include/") != nullptr) {
        continue;
      }
      if (!text.empty()) text += ", inlined at ";
      text += line;
    }
    pclose(lines);
  }
  if (text.empty())
    text = "an unknown line of " + SymbolAt(static_cast<const char*>(code) - 1, true);
  return text;
}

}  // namespace cudasim
