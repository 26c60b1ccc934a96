#include "models/train/machine_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "core/cuda/device_info.h"
#include "core/io/file.h"
#include "models/report/format.h"

namespace lockstep::models {
namespace {

// The number behind "name:" in a file of /proc, in bytes; 0 if there is none.
int64_t ProcBytes(const char* file, const std::string& name) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with(name + ":")) continue;
    int64_t kib = 0;
    std::istringstream(line.substr(name.size() + 1)) >> kib;
    return kib * 1024;
  }
  return 0;
}

int64_t ReadNumber(const std::string& file, int64_t otherwise) {
  std::ifstream in(file);
  int64_t n = 0;
  return in >> n ? n : otherwise;  // the file may say "max"
}

// The number behind "name " in memory.stat of a cgroup; 0 if there is none.
int64_t CgroupStat(const std::string& file, const std::string& name) {
  std::ifstream in(file);
  std::string key;
  for (int64_t value = 0; in >> key >> value;) {
    if (key == name) return value;
  }
  return 0;
}

// A container or a Slurm job may have less than the machine.
void LimitByCgroup(DeviceMemory* memory) {
  std::ifstream in("/proc/self/cgroup");
  std::string own;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("0::")) own = line.substr(3);  // version 2
  }
  for (std::string path = own; !path.empty(); path = path == "/" ? "" : ParentPath(path)) {
    const std::string folder = "/sys/fs/cgroup" + (path == "/" ? "" : path);
    const int64_t limit = ReadNumber(folder + "/memory.max", -1);
    if (limit < 0 || limit >= memory->total) continue;
    memory->total = limit;
    // The page cache counts as used, but the system evicts it first.
    const int64_t cached = CgroupStat(folder + "/memory.stat", "inactive_file");
    const int64_t used = ReadNumber(folder + "/memory.current", 0) - cached;
    memory->free = std::min(memory->free, std::clamp<int64_t>(limit - used, 0, limit));
  }
}

std::string Bytes(int64_t n) { return FormatBytes(static_cast<double>(n)); }

}  // namespace

DeviceMemory MemoryOf(Device device) {
  if (device.is_cuda()) {
    const cuda::DeviceInfo info = cuda::GetDeviceInfo(device);
    return {info.total_bytes, info.free_bytes};
  }
  DeviceMemory memory{ProcBytes("/proc/meminfo", "MemTotal"),
                      ProcBytes("/proc/meminfo", "MemAvailable")};
  LimitByCgroup(&memory);
  return memory;
}

int64_t ResidentBytes() { return ProcBytes("/proc/self/status", "VmRSS"); }
int64_t PeakResidentBytes() { return ProcBytes("/proc/self/status", "VmHWM"); }

std::string MemoryAdvice(const MemoryPlan& plan, const RunSetup& setup, int64_t available) {
  const MemoryKinds& k = plan.peak;
  const RunConfig& c = setup.config;
  const GptConfig& m = setup.model;
  // If so, no batch is small enough.
  const bool model = k.parameters + k.optimizer + plan.largest.gradients >= available;
  if (!model && k.activations + k.workspace > k.total() / 2) {
    const std::string batch =
        c.train.batch_size > 1
            ? fmt::format("train.batch_size (now {}; raise train.grad_accum to compensate) or ",
                          c.train.batch_size)
            : "";
    std::string use;
    if (m.recompute == RecomputeChoice()) use += ", or use train.recompute=auto";
    // The model itself takes more memory in bf16, as the optimizer keeps fp32 master weights.
    if (SizeOf(WeightDType(c.train.precision)) != 2) use += ", or use train.precision=bf16";
    return fmt::format("lower {}model.block_size (now {}){}", batch, setup.window, use);
  }
  if (!model && k.communication > k.total() / 2) {
    return fmt::format(
        "use dist.reduction=fast, or fewer micro-batches per step (now {}), ideally a power of two",
        setup.micro_batches);
  }
  std::string text = setup.ranks > 1 && c.parallel.shard != "full"
                         ? "share the model out with parallel.shard=full, or make it smaller: "
                         : "make the model smaller: ";
  // The token embedding, and the head if it is separate.
  const int64_t vocabulary = m.vocab_size * m.n_embd * (m.tie_embeddings ? 1 : 2);
  const int64_t blocks = 12 * m.n_layer * m.n_embd * m.n_embd;
  text += vocabulary > blocks
              ? fmt::format("model.vocab_size (now {})", m.vocab_size)
              : fmt::format("model.n_layer (now {}) or model.n_embd (now {})", m.n_layer, m.n_embd);
  if (c.optim.name == "adamw") text += "; optim.name=lion or sgd keeps less state";
  return text;
}

MemoryVerdict JudgeMemory(const MemoryPlan& plan, const RunSetup& setup, const DeviceMemory& memory,
                          int64_t processes) {
  if (memory.total <= 0) return {};
  const bool cpu = setup.device.is_cpu();
  const int64_t copies = plan.snapshot * (SavesParts(setup) ? processes : 1);
  // The program is already loaded.
  const int64_t more = cpu ? processes * plan.reserved + copies : plan.peak.total();
  const int64_t all = cpu ? more + processes * plan.program : more;
  using Kind = MemoryVerdict::Kind;
  const Kind kind = all > memory.total   ? Kind::kTooLarge
                    : more > memory.free ? Kind::kTight
                                         : Kind::kFits;
  if (kind == Kind::kFits) return {};
  const std::string what =
      cpu && processes > 1
          ? fmt::format("{} processes of this run take {} together", processes, Bytes(all))
          : fmt::format("this run takes {}", Bytes(all));
  const std::string has =
      kind == Kind::kTooLarge
          ? fmt::format("has {}", Bytes(memory.total))
          : fmt::format("has {} free of {}", Bytes(memory.free), Bytes(memory.total));
  const int64_t available = kind == Kind::kTight ? memory.free : memory.total;
  const std::string others = kind == Kind::kTight ? ", or end other programs that use it" : "";
  return {kind, fmt::format("{}, and {} {}: {}{}. The plan: {}", what,
                            cpu ? "this machine" : ToString(setup.device), has,
                            MemoryAdvice(plan, setup, cpu ? available / processes : available),
                            others, Summary(plan)) +
                    (plan.program > 0 ? "; " + ProcessSummary(plan) : "")};
}

}  // namespace lockstep::models
