#include "models/plan/cluster.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "core/cuda/device_info.h"
#include "core/error.h"
#include "core/thread_pool.h"
#include "dist/control/rendezvous.h"
#include "models/memory/machine_memory.h"
#include "models/plan/cluster_file.h"
#include "models/report/format.h"
#include "models/train/utilization.h"

namespace lockstep::models {
namespace {

// From the datasheets: memory (GB of 10^9 bytes as the driver counts them), its bandwidth, NVLink
// and a network card, one way, for each GPU. DGX A100 has eight cards of 200 Gbit/s, DGX H100 eight
// of 400; RTX 4090s are behind PCIe 4.0, and share one card of 100 Gbit/s. Shares of the peak: see
// README.md on where they are from.
struct Named {
  const char* name;
  const char* card;  // as DatasheetFlops knows it
  double gigabytes;
  int64_t units;
  double memory, node, network, pcie;  // GB/s
  double product, attention, attention_backward;
};
constexpr Named kNamed[] = {
    {"A100", "A100", 80, 108, 2039, 300, 25, 25, 0.80, 0.55, 0.45},
    {"A100-40", "A100", 40, 108, 1555, 300, 25, 25, 0.80, 0.55, 0.45},
    {"H100", "H100", 80, 132, 3350, 450, 50, 50, 0.70, 0.45, 0.38},
    {"H200", "H200", 141, 132, 4800, 450, 50, 50, 0.70, 0.45, 0.38},
    {"RTX4090", "RTX 4090", 24, 128, 1008, 20, 1.5, 20, 0.85, 0.60, 0.50},
};
// Of the datasheet's bandwidth a long copy, or a long message of NCCL, reaches this much.
constexpr double kOfMemory = 0.85, kOfLink = 0.80;

// `sharing`: how many ranks share the threads that this process has. `measured`: FLOP/s of these,
// where they are known.
Cluster CpuCluster(int64_t ranks, int64_t per_node, int64_t sharing,
                   std::optional<double> measured = {}) {
  Cluster c{.device = "cpu", .devices = ranks, .per_node = per_node, .is_cpu = true};
  const double flops = measured ? *measured : MeasureGemmFlops(kCpu, "fp32").value_or(1e10);
  c.bytes = MemoryOf(kCpu).total / per_node;
  c.peak = flops / static_cast<double>(sharing);
  c.product_share = 0.9;
  c.attention_share = c.attention_backward_share = 0.5;
  c.units = std::max<int64_t>(1, NumThreads() / sharing);
  c.tile = 16;
  c.memory_per_second = c.elementwise_per_second = 10e9 / static_cast<double>(per_node);
  c.launch_seconds = 1e-6;
  c.host_seconds = 30e-6;
  c.node = c.network = {100e-6, 1e9};  // TCP on the loopback device
  c.disturbs = 1;                      // messages take the cores that compute
  c.host = {1e-6, 10e9};
  return c;
}

Cluster GpuCluster(const Named& n, int64_t devices, const std::string& precision) {
  Cluster c{.device = n.name, .devices = devices, .cuda_bytes = kCudaBytes, .precision = precision};
  c.per_node = std::min<int64_t>(devices, 8);
  c.bytes = std::llround(n.gigabytes * 1e9);
  c.host_bytes = 3 * c.bytes;  // a machine usually has two to four times the memory of its GPUs
  c.peak = DatasheetFlops(n.card, precision).value_or(0);
  c.product_share = n.product;
  c.attention_share = n.attention;
  c.attention_backward_share = n.attention_backward;
  c.units = n.units;
  c.memory_per_second = c.elementwise_per_second = kOfMemory * n.memory * 1e9;
  c.launch_seconds = 4e-6;
  c.node = {6e-6, kOfLink * n.node * 1e9};
  c.network = {15e-6, kOfLink * n.network * 1e9};
  c.host = {10e-6, kOfLink * n.pcie * 1e9};
  return c;
}

std::string PerSecond(double bytes) { return FormatDecimalBytes(bytes) + "/s"; }

}  // namespace

Link Cluster::Between(int64_t ranks, int64_t stride) const {
  if (ranks * stride <= per_node) return node;
  const int64_t in_node = std::max<int64_t>(1, per_node / stride);
  return {network.seconds,
          std::min(node.bytes_per_second, static_cast<double>(in_node) * network.bytes_per_second)};
}

Cluster ParseCluster(std::string_view text, const std::string& precision) {
  const std::string all(text);
  char* end = nullptr;
  const long long devices = std::strtoll(all.c_str(), &end, 10);
  const std::string name = *end == 'x' ? end + 1 : "";
  if (devices >= 1 && devices <= 1000000) {
    if (name.ends_with(".json")) return ReadCluster(name, devices);
    if (name == "cpu" && devices <= 1024) return CpuCluster(devices, devices, devices);
    for (const Named& n : kNamed) {
      if (name == n.name) return GpuCluster(n, devices, precision);
    }
  }
  std::string names;
  for (const Named& n : kNamed) names += StrCat(n.name, ", ");
  throw InputError(StrCat("cluster = \"", text, "\" must be a number of devices and their name, ",
                          "as in --cluster=64xH100; names are ", names,
                          "cpu, and a file that plan --calibrate wrote"));
}

Cluster ClusterOfRanks(const dist::Rendezvous& ranks, Device device, const std::string& precision,
                       std::optional<double> measured) {
  const int64_t local = ranks.local_world_size;
  const DeviceMemory host = MemoryOf(kCpu);
  if (device.is_cpu()) {
    Cluster c = CpuCluster(ranks.world_size, local, /*sharing=*/1, measured);
    c.bytes = std::min(host.total / local, host.free / local + ResidentBytes());
    return c;
  }
  const cuda::DeviceInfo gpu = cuda::GetDeviceInfo(device);
  const auto flops = DatasheetFlops(gpu.name, precision);
  const auto distance = [&](const Named& n) {
    const double memory = std::log(1e9 * n.gigabytes / static_cast<double>(gpu.total_bytes));
    const double speed = flops ? std::log(*DatasheetFlops(n.card, precision) / *flops) : 0;
    return 10 * std::abs(speed) + std::abs(memory);
  };
  Cluster c =
      GpuCluster(*std::ranges::min_element(kNamed, {}, distance), ranks.world_size, precision);
  c.device = gpu.name;
  c.per_node = local;
  c.bytes = gpu.free_bytes;
  c.host_bytes = host.free / local;
  c.cuda_bytes = 0;
  c.peak = flops.value_or(c.peak);
  return c;
}

std::string Describe(const Cluster& c) {
  std::string s = fmt::format("{} {} of {}", c.devices,
                              !c.is_cpu        ? c.device
                              : c.devices == 1 ? "CPU rank"
                                               : "CPU ranks",
                              FormatDecimalBytes(static_cast<double>(c.bytes)));
  if (c.nodes() > 1) s += fmt::format(" in {} nodes", c.nodes());
  if (c.devices > 1) {
    s += fmt::format("; {} within a node", PerSecond(c.node.bytes_per_second));
  }
  if (c.nodes() > 1) s += fmt::format(", {} between nodes", PerSecond(c.network.bytes_per_second));
  return s;
}

}  // namespace lockstep::models
