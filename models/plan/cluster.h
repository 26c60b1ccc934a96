// The GPUs, memory and links that a plan is made for.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/device.h"

namespace lockstep::dist {
struct Rendezvous;
}

namespace lockstep::models {

// What a rank sends at once, in one direction, while the others of its node do the same.
struct Link {
  double seconds = 0;           // of a message without bytes
  double bytes_per_second = 0;  // of a long one
};

// Equal devices, a rank on each, in equal nodes.
struct Cluster {
  std::string device;      // "H100"
  int64_t devices = 1;     // in all
  int64_t per_node = 1;    // in a node; the rest of `devices` in the last one
  int64_t bytes = 0;       // of memory, each
  int64_t host_bytes = 0;  // of its host's memory, for each device
  bool is_cpu = false;
  int64_t cuda_bytes = 0;  // of `bytes`, what CUDA itself will take
  std::string precision;   // in which GPUs compute where train.precision is left open

  // FLOP/s of dense products by the datasheet, or as measured on a CPU, and the share of them that
  // large products reach (a GPU lowers its clock to keep to its power); the same share of attention
  // and of its backward.
  double peak = 0;
  double product_share = 0, attention_share = 0, attention_backward_share = 0;
  int64_t units = 1;             // streaming multiprocessors, or cores
  double tile = 128;             // rows and columns of a product that one computes at a time
  double memory_per_second = 0;  // bytes, read or written
  // The same of norms, activations and losses, which a CPU also has to compute.
  double elementwise_per_second = 0;
  double launch_seconds = 0;  // the least that a kernel takes
  // Of a block's forward, or of its backward, what lies between its kernels; a GPU's host is ahead.
  double host_seconds = 0;
  // Of the time of messages and copies that run beside computing, how much longer that takes.
  double disturbs = 0.1;

  Link node = {}, network = {}, host = {};  // within a node, between nodes, to the host's memory

  int64_t nodes() const { return (devices + per_node - 1) / per_node; }
  // The link of a group of ranks that are `stride` apart: within a node, or what is left of the
  // network for each. A ring enters and leaves each node by the network cards of all its members.
  Link Between(int64_t ranks, int64_t stride) const;
};

// "64xH100": 64 GPUs in nodes of eight, by their datasheets; "8xA100-40" has 40 GB each. Named:
// A100, A100-40, H100, H200, RTX4090; "2xcpu": so many ranks on this machine's CPU, whose fp32
// products are timed; "2xmachine.json": such devices as were measured (ReadCluster). `precision`,
// of GPUs, as in train.precision. Throws InputError that lists the names.
Cluster ParseCluster(std::string_view text, const std::string& precision);

// The ranks that a run was started on, each with a device and threads like this one's, which are
// set, and with its part of the memory that is free there now. A GPU is as the named one that is
// nearest, with its own peak where that is known. `flops`: of a CPU's products, where they have
// been measured (MeasureGemmFlops).
Cluster ClusterOfRanks(const dist::Rendezvous& ranks, Device device, const std::string& precision,
                       std::optional<double> flops = {});

// "64 H100 of 80.0 GB in 8 nodes; 450 GB/s within a node, 50.0 GB/s between nodes".
std::string Describe(const Cluster& cluster);

}  // namespace lockstep::models
