#include "models/train/pipeline_stages.h"

#include "dist/pipeline/stage_cut.h"
#include "dist/tensor/sequence.h"
#include "kernels/concat/concat.h"
#include "nn/lora/quantized_linear.h"
#include "nn/tokens.h"

namespace lockstep::models {
namespace {

// The cost of a part that multiplies by its matrices; a token uses only some experts.
double CostOf(const Module& part, const nn::MixtureOptions& mixture) {
  auto cost = static_cast<double>(nn::NumQuantizedWeights(part));
  for (const auto& [name, p] : part.NamedParameters()) {
    if (IsValueEmbed(name)) continue;
    const Shape& shape = p->logical_shape();
    const auto numel = static_cast<double>(shape.numel());
    if (shape.ndim() == 2) cost += numel;
    if (shape.ndim() == 3) {
      cost += numel * static_cast<double>(mixture.n_expert_used) / static_cast<double>(shape[0]);
    }
  }
  return cost;
}

}  // namespace

std::vector<int64_t> CutIntoStages(Gpt& gpt, int64_t window, int stages) {
  const int64_t layers = gpt.blocks().size();
  if (stages > layers + 2) {
    throw InputError(StrCat("a pipeline of ", stages,
                            " stages needs as many parts, and a model of ", layers, " layers has ",
                            layers + 2,
                            " with its embedding and its head: use a smaller parallel.pp (with "
                            "schedule 1f1b or zb_h1 each of its ranks has one stage)"));
  }
  std::vector<double> costs = {0};  // rows of the embedding are only copied
  for (int64_t i = 0; i < layers; ++i) {
    // With causal attention, half of the positions.
    costs.push_back(CostOf(*gpt.blocks()[i].module(), gpt.config().mixture) +
                    static_cast<double>(window * gpt.config().n_head * gpt.config().head_dim));
  }
  costs.push_back(static_cast<double>(gpt.config().vocab_size * gpt.config().n_embd));
  return dist::CutByCost(costs, stages);
}

GptStage::GptStage(Gpt& gpt, int64_t begin, int64_t end, dist::TensorRanksPtr tensor)
    : gpt_(gpt), begin_(begin), end_(end), tensor_(std::move(tensor)) {
  const int64_t head = gpt.blocks().size() + 1;
  const auto add = [&](const std::string& name, std::shared_ptr<Module> part) {
    parts_.push_back(std::make_unique<Child<Module>>(this, name, std::move(part)));
  };
  for (int64_t part = begin; part < end; ++part) {
    if (part == 0) {
      add("", gpt.embedding().module());
    } else if (part == head) {
      add("", gpt.head().module());
    } else {
      add(gpt.blocks()[part - 1].name(), gpt.blocks()[part - 1].module());
    }
  }
}

nn::ResidualStream GptStage::Stream(const Tensor& input, const Tensor& ids) {
  const nn::TokenScope tokens(ids);
  nn::ResidualStream stream = first() ? gpt_.Embedded(ids) : Received(input);
  const int64_t head = gpt_.blocks().size() + 1;
  for (int64_t part = std::max<int64_t>(begin_, 1); part < std::min(end_, head); ++part) {
    stream = gpt_.blocks()[part - 1](std::move(stream));
  }
  return stream;
}

Tensor GptStage::Forward(const Tensor& input, const Tensor& ids, const Tensor& targets) {
  nn::ResidualStream stream = Stream(input, ids);
  if (last()) return gpt_.head()(std::move(stream), targets);
  const Tensor sum = Sum(stream);
  return gpt_.config().embed_mix ? ops::Concat({sum, stream.x0}, 0) : sum;
}

nn::ResidualStream GptStage::Received(const Tensor& input) const {
  if (!gpt_.config().embed_mix) return input;
  const std::vector<Tensor> parts = input.Chunk(2, 0);
  return {parts[0], {}, parts[1]};
}

// By the operation that would make the sum within a stage. In backward the next stage's norm adds
// to the gradient of the sum in f32 and rounds once, as that operation does.
Tensor GptStage::Sum(const nn::ResidualStream& stream) const {
  if (!stream.open.value.defined()) return stream.x;
  const auto sum = [](const nn::ResidualStream& part, const std::vector<Tensor>&,
                      SamplePart where) { return std::pair(SumOf(part, where), Tensor()); };
  const nn::ResidualStream without_start(stream.x, stream.open);
  if (tensor_->parts() == 1 || !GradEnabled()) return sum(without_start, {}, {}).first;
  return dist::MapParts(tensor_, without_start, {}, sum).first;
}

}  // namespace lockstep::models
