// Writing safetensors files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"
#include "core/io/file.h"
#include "core/tensor.h"

namespace lockstep {

// A tensor to write, with row-major elements: numel * SizeOf(dtype) bytes.
struct SafetensorsItem {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;
  // If set, it is called just before the tensor is written (`bytes` is then unused), so that
  // tensors on a device, or sharded across ranks, need not all be on the host at once. What it
  // returns is contiguous and on the host.
  std::function<Tensor()> produce = {};

  // Takes a tensor of any device and layout, which is copied to the host, if need be, when it is
  // written.
  static SafetensorsItem Of(std::string name, const Tensor& tensor);
  // The same for a tensor that `make` makes then, of this dtype and shape.
  static SafetensorsItem Of(std::string name, DType dtype, const Shape& shape,
                            std::function<Tensor()> make);
};

// The bytes of a file before its data: the length and the JSON, padded with spaces to a multiple
// of 8. Sets `order` to the order of the data. See WriteSafetensors.
std::string SafetensorsHeader(std::span<const SafetensorsItem> items,
                              const std::map<std::string, std::string>& metadata,
                              std::vector<size_t>* order);

// Writes a complete file, without Sync or Close. __metadata__ is {"format": "pt"}, which the
// loaders of transformers insist on, updated with the given entries. Data is in the reference
// implementation's order: wider dtypes first, so that everything is aligned, then by name. The
// bytes depend on nothing else. ArgumentError for a name that is repeated, not UTF-8, or
// "__metadata__", and for byte counts that do not match the shape; IoError.
void WriteSafetensors(FileWriter& out, std::span<const SafetensorsItem> items,
                      const std::map<std::string, std::string>& metadata = {});

// The format's name for a dtype: "BF16".
std::string_view SafetensorsName(DType dtype);

}  // namespace lockstep
