// Data sets that one process of a machine encodes, and its other processes map.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "core/io/file.h"
#include "data/dataset.h"

namespace lockstep::data {

// DatasetOptions::shared of a process that shares what it encodes, or of one that takes what the
// `links` of others lead to, whatever machines these are on. Data sets are shared in memory that
// has no name in any file system (memfd_create), and that is freed with the last process that has
// mapped it, however these end. Others find it by a link in /proc, as long as this struct lives. If
// they cannot, as in another container, or if there is not enough memory, each encodes for itself.
struct SharedDatasets {
  bool shares = true;
  std::vector<std::string> links = {};  // a line for each data set
  std::vector<FileDescriptor> files = {};
};

// Whether another process has shared the data set of options.path. `counts` is what is shared
// besides the data set.
bool TakeShared(const DatasetOptions& options, std::span<std::byte> counts, Dataset* dataset);
// Shares a data set that was encoded: its streams become those that others map as well. Token files
// do not need this.
void Share(const DatasetOptions& options, std::span<const std::byte> counts, Dataset* dataset);

}  // namespace lockstep::data
