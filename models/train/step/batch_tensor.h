// Batches as tensors.
#pragma once

#include <vector>

#include "core/tensor.h"
#include "data/batch.h"
#include "nn/documents.h"

namespace lockstep::models {

// i32 [rows, cols] of a batch's inputs or targets, on the device; on the meta device there need be
// no values.
inline Tensor ToTensor(const std::vector<int32_t>& values, const data::Batch& batch,
                       Device device) {
  if (device.is_meta()) return Tensor::Empty({batch.rows, batch.cols}, DType::kI32, device);
  return Tensor::FromVector<int32_t>(values, {batch.rows, batch.cols}, device);
}

// The documents of the batch; undefined if it does not say where they begin.
inline nn::Documents DocumentsOf(const data::Batch& batch, Device device) {
  if (batch.first_key.empty()) return {};
  if (device.is_meta()) return {ToTensor({}, batch, device), ToTensor({}, batch, device)};
  return nn::MakeDocuments(batch.first_key, batch.rows, batch.cols, device);
}

}  // namespace lockstep::models
