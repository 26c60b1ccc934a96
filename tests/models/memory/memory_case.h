// Shared by the tests of memory plans: a small GPT in training, and its plan.
#pragma once

#include <functional>
#include <memory>
#include <ostream>

#include "data/loader.h"
#include "dist/context/parallelize_context.h"
#include "models/gpt/gpt.h"
#include "models/memory/memory_plan.h"
#include "models/train/parallelize.h"
#include "optim/adamw.h"
#include "optim/muon.h"

namespace lockstep::models {

struct MemoryCase {
  const char* name;
  int64_t batch_size, window, grad_accum;
  double clip;
  GptConfig model;
  DType dtype = DType::kF32;
  optim::AdamWOptions adamw = {};
  dist::ContextRanksPtr context = nullptr;
  bool muon = false;  // instead of AdamW
};

// `rest` with these sizes.
inline GptConfig Shape(int64_t vocab_size, int64_t block_size, int64_t n_layer, int64_t n_head,
                       int64_t n_embd, GptConfig rest = {}) {
  rest.vocab_size = vocab_size;
  rest.block_size = block_size;
  rest.n_layer = n_layer;
  rest.n_head = n_head;
  rest.n_embd = n_embd;
  return rest;
}

inline std::ostream& operator<<(std::ostream& out, const MemoryCase& c) { return out << c.name; }

inline std::shared_ptr<Gpt> Make(const MemoryCase& c, Device device) {
  auto model = std::make_shared<Gpt>(c.model);
  if (c.context && c.context->within()) ParallelizeLayers(*model, c.context->within());
  if (c.context) dist::ParallelizeContext(*model, c.context);
  model->Materialize(device, 4, c.dtype);
  for (const auto& p : model->Parameters()) p->leaf().SetDType(DType::kF32);
  return model;
}

inline std::unique_ptr<optim::Optimizer> MakeOptimizer(const MemoryCase& c, LanguageModel& model) {
  if (c.muon) return std::make_unique<optim::Muon>(model.Parameters());
  return std::make_unique<optim::AdamW>(model.Parameters(), c.adamw);
}

// 4096 ids below 13.
inline std::shared_ptr<const data::TokenSource> MemoryTokens() {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < 4096; ++i) ids.push_back(static_cast<int32_t>(i * i % 13));
  return std::make_shared<data::MemoryTokens>(ids);
}

// Of a run of a single process that only evaluates.
inline MemoryPlan PlanEvaluation(const MemoryCase& c) {
  return PlanMemory({.model = [&] { return Make(c, kMeta); },
                     .batch_size = c.batch_size,
                     .window = c.window,
                     .evaluates = true});
}

// `ranks`: in planned groups; empty: a single process.
inline MemoryPlan Plan(const MemoryCase& c,
                       std::function<std::unique_ptr<StepRanks>(LanguageModel&)> ranks = {}) {
  return PlanMemory({.model = [&] { return Make(c, kMeta); },
                     .ranks = std::move(ranks),
                     .optimizer = [&](LanguageModel& model) { return MakeOptimizer(c, model); },
                     .batch_size = c.batch_size,
                     .window = c.window,
                     .grad_accum = c.grad_accum,
                     .clip = c.clip});
}

}  // namespace lockstep::models
