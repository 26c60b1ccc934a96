#include "models/plan/cluster_file.h"

#include <algorithm>

#include "core/error.h"
#include "core/io/file.h"
#include "core/io/json.h"
#include "core/system/processors.h"

namespace lockstep::models {
namespace {

struct Field {
  const char* name;
  double& (*in)(Cluster&);
};
constexpr Field kFields[] = {
    {"peak", [](Cluster& c) -> double& { return c.peak; }},
    {"product_share", [](Cluster& c) -> double& { return c.product_share; }},
    {"attention_share", [](Cluster& c) -> double& { return c.attention_share; }},
    {"attention_backward_share", [](Cluster& c) -> double& { return c.attention_backward_share; }},
    {"memory_per_second", [](Cluster& c) -> double& { return c.memory_per_second; }},
    {"elementwise_per_second", [](Cluster& c) -> double& { return c.elementwise_per_second; }},
    {"launch_seconds", [](Cluster& c) -> double& { return c.launch_seconds; }},
    {"host_seconds", [](Cluster& c) -> double& { return c.host_seconds; }},
    {"tile", [](Cluster& c) -> double& { return c.tile; }},
    {"disturbs", [](Cluster& c) -> double& { return c.disturbs; }},
    {"node_seconds", [](Cluster& c) -> double& { return c.node.seconds; }},
    {"node_per_second", [](Cluster& c) -> double& { return c.node.bytes_per_second; }},
    {"network_seconds", [](Cluster& c) -> double& { return c.network.seconds; }},
    {"network_per_second", [](Cluster& c) -> double& { return c.network.bytes_per_second; }},
    {"host_copy_seconds", [](Cluster& c) -> double& { return c.host.seconds; }},
    {"host_copy_per_second", [](Cluster& c) -> double& { return c.host.bytes_per_second; }},
};
struct Count {
  const char* name;
  int64_t Cluster::*in;
};
constexpr Count kCounts[] = {{"per_node", &Cluster::per_node},
                             {"bytes", &Cluster::bytes},
                             {"host_bytes", &Cluster::host_bytes},
                             {"cuda_bytes", &Cluster::cuda_bytes},
                             {"units", &Cluster::units}};

// Ranks of a CPU have fewer threads than the one that was measured, if there are more of them.
void Share(int64_t devices, int64_t processors, Cluster* c) {
  c->bytes = c->bytes * c->per_node / devices;
  c->per_node = devices;
  const int64_t units = std::max<int64_t>(1, processors / devices);
  const double share = static_cast<double>(units) / static_cast<double>(c->units);
  for (double* rate : {&c->peak, &c->memory_per_second, &c->elementwise_per_second}) {
    *rate *= share;
  }
  c->units = units;
}

}  // namespace

std::string ToJson(const Cluster& cluster) {
  Cluster c = cluster;
  OrderedJson j = {{"device", c.device}, {"is_cpu", c.is_cpu}};
  if (c.is_cpu) j["processors"] = UsableProcessors();
  if (!c.precision.empty()) j["precision"] = c.precision;
  for (const Count& count : kCounts) j[count.name] = c.*count.in;
  for (const Field& field : kFields) j[field.name] = field.in(c);
  return j.dump(1) + "\n";
}

Cluster ReadCluster(const std::string& path, int64_t devices) {
  const Json j = ParseJson(ReadFile(path), path);
  try {
    Cluster c{.device = j.at("device"), .devices = devices, .is_cpu = j.at("is_cpu")};
    c.precision = j.value("precision", "");
    for (const Count& count : kCounts) c.*count.in = IntegerOf(j.at(count.name), 0);
    c.tile = c.is_cpu ? 16 : 128;  // older files lack it
    for (const Field& field : kFields) {
      field.in(c) =
          &field.in(c) == &c.tile ? j.value(field.name, c.tile) : j.at(field.name).get<double>();
      if (!(field.in(c) >= 0)) throw InputError(StrCat(field.name, " must not be negative"));
    }
    if (c.per_node < 1 || c.units < 1 || c.peak <= 0 || c.tile <= 0) {
      throw InputError("per_node, units, peak and tile must be above 0");
    }
    if (c.is_cpu) Share(devices, IntegerOf(j.at("processors"), 1), &c);
    return c;
  } catch (const JsonError& error) {
    throw InputError(StrCat(path, ": ", error.what(), ": is it a file of plan --calibrate?"));
  } catch (const InputError& error) {
    throw InputError(StrCat(path, ": ", error.what()));
  }
}

}  // namespace lockstep::models
