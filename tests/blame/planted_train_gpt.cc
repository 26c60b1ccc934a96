// train_gpt with a fault, which LOCKSTEP_PLANT names: from the third step on it computes something
// otherwise, on the rank that LOCKSTEP_PLANT_RANK names, or on all. //tools:blame knows nothing of
// it.
//
// Faults of kernels take the place of a slot's function. Others are functions that the linker calls
// instead (--wrap, in BUILD).
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#include "core/philox.h"
#include "core/slots.h"
#include "core/step_state.h"
#include "data/batch.h"
#include "dist/groups/host_reduce.h"
#include "kernels/adamw/adamw.h"
#include "kernels/attention/attention.h"
#include "kernels/linear/linear.h"
#include "kernels/residual_norm/residual_norm.h"
#include "kernels/softmax_cross_entropy/softmax_cross_entropy.h"
#include "kernels/token_position_embedding/token_position_embedding.h"

int train_gpt_main(int argc, char** argv);

namespace {

using namespace lockstep;

constexpr int64_t kStep = 2;  // the third

std::string Variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

bool IsPlanted(const std::string& name) {
  static const std::string planted = Variable("LOCKSTEP_PLANT");
  static const std::string on = Variable("LOCKSTEP_PLANT_RANK"), rank = Variable("RANK");
  return name == planted && (on.empty() || on == rank);
}

// Of the step that is under way; before the first, -1.
std::atomic<int64_t> step_now = -1;

bool IsFaulty(const std::string& name) {
  const StepState* const state = StepUnderWay();
  // Null on the meta device, on which steps are planned.
  if (state != nullptr && state->device_values() != nullptr)
    step_now = state->device_values()->step;
  return IsPlanted(name) && step_now >= kStep;
}

// Rounds an element the other way.
void Nudge(const Tensor& x, int64_t element = 5) {
  float& value = x.data<float>()[element];
  value = std::nextafter(value, value + 1);
}

// `result`: which of the arguments is nudged.
template <class F>
void Replace(Slot<void(const F&)>& slot, const char* fault, Tensor (*result)(const F&)) {
  static Slot<void(const F&)> real = slot;
  static const char* of = fault;
  static Tensor (*nudged)(const F&) = result;
  slot.Register(DeviceType::kCpu, [](Stream stream, const F& args) {
    real(std::move(stream), args);
    if (IsFaulty(of) && nudged(args).defined()) Nudge(nudged(args));
  });
}

auto real_embedding = token_position_embedding_forward;
auto real_accumulate = accumulate_slot;
auto real_adamw = adamw_update;
auto real_norm = residual_norm_forward;

void PlantKernels() {
  Replace<AttentionForwardArgs>(attention_forward, "attention", [](const auto& a) { return a.y; });
  Replace<AttentionBackwardArgs>(attention_backward, "attention backward",
                                 [](const auto& a) { return a.dk; });
  Replace<ResidualNormBackwardArgs>(residual_norm_backward, "norm backward",
                                    [](const auto& a) { return a.dx; });
  Replace<CrossEntropyBackwardArgs>(cross_entropy_backward, "loss backward",
                                    [](const auto& a) { return a.dlogits; });
  Replace<LinearForwardArgs>(linear_forward, "product", [](const auto& a) { return a.y; });
  Replace<LinearBackwardArgs>(linear_backward, "product backward",
                              [](const auto& a) { return a.dx.tensor; });
  real_embedding = token_position_embedding_forward;
  token_position_embedding_forward.Register(
      DeviceType::kCpu, [](Stream stream, const Tensor& ids, const Tensor& wte, const Tensor& wpe,
                           int64_t first, const Tensor& positions, const Tensor& y) {
        real_embedding(std::move(stream), ids, wte, wpe, first, positions, y);
        if (IsFaulty("embedding")) Nudge(y);
      });
  real_accumulate = accumulate_slot;
  accumulate_slot.Register(DeviceType::kCpu,
                           [](Stream stream, const Tensor& from, const Tensor& to) {
                             real_accumulate(std::move(stream), from, to);
                             if (IsFaulty("sum") && to.dtype() == DType::kF32 && to.numel() > 5)
                               Nudge(to);
                           });
  real_adamw = adamw_update;
  adamw_update.Register(DeviceType::kCpu, [](Stream stream, std::span<const UpdateTensors> tensors,
                                             const AdamWHyper& hyper, const StepValues* values) {
    real_adamw(std::move(stream), tensors, hyper, values);
    if (IsFaulty("adamw")) Nudge(tensors.back().value);
  });
  real_norm = residual_norm_forward;
  residual_norm_forward.Register(DeviceType::kCpu,
                                 [](Stream stream, const ResidualNormForwardArgs& args) {
                                   ResidualNormForwardArgs others = args;
                                   StepValues before;
                                   // The mask of the step before.
                                   if (args.values != nullptr && IsFaulty("stale mask")) {
                                     before = *args.values;
                                     --before.step;
                                     others.values = &before;
                                   }
                                   real_norm(std::move(stream), others);
                                   if (IsFaulty("norm")) Nudge(args.y);
                                 });
}

}  // namespace

// What the linker calls in place of functions of Lockstep, and these themselves.
void RealReadBatch(const data::TokenSource& source, std::span<const int64_t> starts, int64_t block_size, data::Batch* batch, bool document_mask) asm(
    "__real__ZN8lockstep4data9ReadBatchERKNS0_"
    "11TokenSourceESt4spanIKlLm18446744073709551615EElPNS0_5BatchEb");
void PlantedReadBatch(const data::TokenSource& source, std::span<const int64_t> starts, int64_t block_size, data::Batch* batch, bool document_mask) asm(
    "__wrap__ZN8lockstep4data9ReadBatchERKNS0_"
    "11TokenSourceESt4spanIKlLm18446744073709551615EElPNS0_5BatchEb");
void PlantedReadBatch(const data::TokenSource& source, std::span<const int64_t> starts,
                      int64_t block_size, data::Batch* batch, bool document_mask) {
  std::vector<int64_t> shifted(starts.begin(), starts.end());
  // From the first step on: the loader reads ahead, and says nothing of steps.
  if (IsPlanted("data")) {
    for (int64_t& start : shifted) start = std::max<int64_t>(0, start - 1);
  }
  RealReadBatch(source, shifted, block_size, batch, document_mask);
}

uint64_t RealSite(uint64_t site) asm("__real__ZN8lockstep12DistinctSiteEm");
uint64_t PlantedSite(uint64_t site) asm("__wrap__ZN8lockstep12DistinctSiteEm");
uint64_t PlantedSite(uint64_t site) {
  const bool other = IsFaulty("seed") && site == HashName(std::string("h.1.attn.resid_dropout"));
  return RealSite(other ? site + 1 : site);
}

void RealReduce(dist::ReduceOp op, DType dtype, std::span<const void* const> inputs, void* output, int64_t n) asm(
    "__real__ZN8lockstep4dist13ReduceInOrderENS0_8ReduceOpENS_"
    "5DTypeESt4spanIKPKvLm18446744073709551615EEPvl");
void PlantedReduce(dist::ReduceOp op, DType dtype, std::span<const void* const> inputs, void* output, int64_t n) asm(
    "__wrap__ZN8lockstep4dist13ReduceInOrderENS0_8ReduceOpENS_"
    "5DTypeESt4spanIKPKvLm18446744073709551615EEPvl");
void PlantedReduce(dist::ReduceOp op, DType dtype, std::span<const void* const> inputs,
                   void* output, int64_t n) {
  std::vector<const void*> ordered(inputs.begin(), inputs.end());
  if (IsFaulty("order") && dtype == DType::kF32) std::reverse(ordered.begin(), ordered.end());
  RealReduce(op, dtype, ordered, output, n);
  if (IsFaulty("message") && dtype == DType::kF32 && n > 0) *static_cast<uint32_t*>(output) ^= 4;
}

int main(int argc, char** argv) {
  PlantKernels();
  return train_gpt_main(argc, argv);
}
