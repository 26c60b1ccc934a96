// How many bytes the ranks of each parallel mode should send in a step, from the sizes of the
// model.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>

#include "tests/plans/plan_run.h"

namespace lockstep::models {

// Of a step, by the axis of the mesh along which they are sent.
using Bytes = std::map<std::string, int64_t>;

// The sizes of a model, and what n ranks of a group send together so that each of them has ...
struct TrafficFormula {
  static constexpr int64_t kBatch = 2;      // sequences of a micro-batch, as PlanRun has them
  static constexpr int64_t kSum = 4;        // bytes of a gradient, and of any partial sum
  static constexpr int64_t kChunk = 16384;  // elements in a chunk of the gradient norm

  TrafficFormula(const Task& task, const Plan& plan)
      : task(task),
        plan(plan),
        m(Resolved(task.model)),
        data(plan.shards * plan.copies),
        keys(m.n_embd / m.n_head * m.n_kv_head),
        tokens(kBatch * m.block_size),
        activation(SizeOf(task.dtype)) {}

  // ... its part of the sum of their tensors, or the whole of a tensor of which each had a part;
  static int64_t Scatter(int64_t n, int64_t bytes) { return (n - 1) * bytes; }
  // the sum, of which each added a part, or the tensors of all of them.
  static int64_t Reduce(int64_t n, int64_t bytes) { return 2 * (n - 1) * bytes; }
  static int64_t GatherAll(int64_t n, int64_t bytes) { return n * (n - 1) * bytes; }

  bool mixture() const { return m.mixture.n_expert > 0; }
  bool swiglu() const { return m.activation == nn::MlpActivation::kSwiGlu; }
  bool layer_norm() const { return m.norm == NormKind::kLayerNorm; }
  int64_t bias(int64_t n) const { return m.bias ? n : 0; }
  int64_t c_attn() const { return m.n_embd + 2 * keys; }           // outputs
  int64_t c_fc() const { return (swiglu() ? 2 : 1) * m.n_inner; }  // outputs
  int64_t norm() const { return m.n_embd + (layer_norm() ? bias(m.n_embd) : 0); }

  // Elements of what tp cuts and of what it does not.
  struct Elements {
    int64_t cut = 0, whole = 0;
  };
  Elements Embedding() const {
    const bool learned = m.position == Position::kLearned;
    return {m.vocab_size * m.n_embd, learned ? m.block_size * m.n_embd : 0};
  }
  Elements Head() const { return {m.tie_embeddings ? 0 : m.vocab_size * m.n_embd, norm()}; }
  int64_t Experts() const {  // of a layer
    return mixture() ? m.mixture.n_expert * m.mixture.n_inner * (swiglu() ? 3 : 2) * m.n_embd : 0;
  }
  Elements Block() const {
    const int64_t c = m.n_embd;
    Elements e{c_attn() * c + bias(c_attn()) + c * c, 2 * norm() + bias(c)};
    if (mixture()) {
      e.whole += m.mixture.n_expert * c;  // the router
    } else {
      e.cut += c_fc() * c + bias(c_fc()) + m.n_inner * c;
      e.whole += bias(c);
    }
    return e;
  }
  // Of all tp ranks together, without experts.
  int64_t OnRanks(const Elements& e) const { return e.cut + plan.tp * e.whole; }
  int64_t Model() const {
    return OnRanks(Embedding()) + m.n_layer * OnRanks(Block()) + OnRanks(Head());
  }

  Bytes Total() const {
    Bytes all;
    if (plan.tp > 1) all["tp"] = task.micro_batches * TensorParallel();
    if (plan.cp > 1) all["cp"] = task.micro_batches * ContextParallel();
    if (plan.ep > 1) all["ep"] = task.micro_batches * ExpertParallel() + NormOfExperts();
    if (plan.pp > 1) all["pp"] = PipelineParallel();
    Data(all);
    std::erase_if(all, [](const auto& one) { return one.second == 0; });
    return all;
  }

  // Into how many pairs of chunks a sequence is cut. Each chunk is a leaf of the gradients' sums.
  int64_t pairs() const { return task.fast ? plan.cp : task.virtual_cp; }
  int64_t leaves() const { return pairs() > 1 ? 2 * pairs() : 1; }

  // Each of these for a micro-batch, on the ranks that compute it. Megatron's: a layer's input is
  // gathered ahead of both column-parallel products and, for the weight's gradient, again; the
  // output's gradient ahead of both row-parallel products': for each of their two, where a schedule
  // makes these apart. Outputs of rows and input gradients of columns are partial sums. Ranks that
  // compute a sequence together each have a part of its tokens.
  int64_t TensorParallel() const {
    const int64_t stream = tokens * m.n_embd, gather = stream * activation;
    // Where the library adds, it does so in the dtype of the activations.
    const int64_t sum = task.fast ? gather : stream * kSum;
    // Gradients of norms, and of the biases that the norms add: the first norm adds none, and
    // experts have none. They are sums over the tokens of each leaf.
    const int64_t biases = (mixture() ? 1 : 2) * m.n_layer * bias(m.n_embd);
    const int64_t norms = (2 * m.n_layer + 1) * norm() + biases;
    // A leaf that is a chunk has its weight gradients at once: only their sum is left for later.
    const bool splits = leaves() == 1 && plan.pp > 0 &&
                        (plan.schedule == dist::PipelineKind::kZeroBubbleH1 ||
                         plan.schedule == dist::PipelineKind::kZeroBubbleV);
    const int64_t of_two = (splits ? 4 : 3) * gather + 2 * sum;  // products, column and row
    // A mixture's input and its output's gradient are gathered, and what experts give for the rows
    // of the tokens that chose them, and those rows' gradients, go to all other ranks.
    const int64_t of_mixture = 2 * gather + 2 * m.mixture.n_expert_used * gather;
    int64_t bytes = m.n_layer * Scatter(plan.tp, of_two + (mixture() ? of_mixture : of_two));
    bytes +=
        leaves() * (task.fast ? Reduce(plan.tp, norms * kSum) : GatherAll(plan.tp, norms * kSum));
    // The embedding's rows and their gradients; positions.
    bytes += Scatter(plan.tp, 2 * gather + Embedding().whole * kSum);
    // The head's input and its gradient, and two numbers in f64 for each token's loss.
    bytes += Scatter(plan.tp, gather + sum) + GatherAll(plan.tp, 2 * tokens * int64_t{8});
    return bytes;
  }

  // Keys and values are gathered in forward and in backward. Their gradients are sent for each pair
  // of chunks by itself where the sums are ordered.
  int64_t ContextParallel() const {
    const int64_t c = plan.cp, width = m.n_embd;
    const int64_t kv = tokens * 2 * keys * activation;
    int64_t bytes = m.n_layer * Scatter(c, 2 * kv + pairs() / c * kv);
    if (mixture()) bytes += m.n_layer * plan.tp * ContextLoads();
    if (GradientsAreTheReducers()) return bytes;
    // Of what tensor-parallel ranks have parts of, and of what each has whole.
    const auto sum = [&](int64_t cut, int64_t whole) {
      return plan.tp * SumOf(c, cut / plan.tp + whole);
    };
    bytes += sum(m.vocab_size * width, Embedding().whole) + sum(m.vocab_size * width, 0);
    bytes += m.n_layer * (sum((width + bias(1)) * c_attn(), 0) + sum(width * width, 0));
    if (mixture()) {
      bytes += m.n_layer * plan.tp * ContextExperts();
    } else {
      bytes += m.n_layer * (sum((width + bias(1)) * c_fc(), 0) + sum(m.n_inner * width, 0));
    }
    const int64_t without_bias = 1 + (mixture() ? m.n_layer : 0);
    bytes += without_bias * sum(0, norm());
    bytes += (2 * m.n_layer + 1 - without_bias) * sum(0, norm() + bias(width));
    return bytes + sum(0, 1);  // the loss
  }
  // Small sums are gathered, and added by all.
  static int64_t SumOf(int64_t n, int64_t elements) {
    return elements < (1 << 15) ? GatherAll(n, elements * kSum) : Reduce(n, elements * kSum);
  }
  // Of the router and the experts of a tensor-parallel rank. What is split across these ranks of
  // the experts needs no sum over them, which get all tokens.
  int64_t ContextExperts() const {
    const int64_t router = m.mixture.n_expert * m.n_embd, experts = Experts() / plan.tp;
    if (plan.ep == 1) return SumOf(plan.cp, router + experts);
    const int64_t of_sequence = std::min(plan.ep, plan.cp), same = plan.cp / of_sequence;
    return SumOf(plan.cp, router) + of_sequence * SumOf(same, experts / of_sequence);
  }
  // Where the rows of each expert begin in each chunk, which ranks gather unless the reducer sums;
  // for the balance loss the loads of each sequence.
  int64_t ContextLoads() const {
    const int64_t counts = GradientsAreTheReducers() ? 0 : m.mixture.n_expert + 1;
    const int64_t loads = m.mixture.balance_loss > 0 ? kBatch * m.mixture.n_expert : 0;
    return GatherAll(plan.cp, leaves() / plan.cp * (counts + loads) * kSum);
  }
  bool GradientsAreTheReducers() const {
    return task.fast && plan.cp > 1 && plan.pp == 0 && !plan.is_sharded() && plan.ep == 1;
  }

  // Tokens to the experts and back, and their gradients; for each leaf how many go where. Every
  // token goes to all experts, which makes the numbers known. Tensor-parallel ranks have rows of
  // their experts each.
  int64_t ExpertParallel() const {
    EXPECT_EQ(m.mixture.n_expert, m.mixture.n_expert_used);
    const int64_t rows = tokens * m.mixture.n_expert_used * m.n_embd * activation;
    return m.n_layer * Scatter(plan.ep, 4 * rows + leaves() * m.mixture.n_expert * 8) / plan.ep;
  }
  // Chunks that lie across ranks, of two weights per layer; once a step.
  int64_t NormOfExperts() const {
    int64_t chunks = 0;
    for (const int64_t out : {c_fc() / m.n_inner * m.mixture.n_inner, m.mixture.n_inner}) {
      const int64_t own = m.mixture.n_expert * out * m.n_embd / (plan.ep * plan.tp);
      EXPECT_TRUE(own % kChunk == 0 || (2 * own == kChunk && task.virtual_tp == 1))
          << "sizes that this test can count";
      if (own % kChunk != 0) chunks += plan.ep / 2;
    }
    return data * plan.cp / plan.ep * Reduce(plan.ep, m.n_layer * chunks * kChunk * kSum);
  }

  // Stage by rank.
  std::vector<int64_t> RankOf() const {
    std::vector<int64_t> rank_of;
    for (int64_t s = 0; s < plan.pp; ++s) rank_of.push_back(s);
    for (int64_t s = 0; s < plan.pp && plan.schedule == dist::PipelineKind::kInterleaved; ++s)
      rank_of.push_back(s);
    for (int64_t s = plan.pp; s-- > 0 && plan.schedule == dist::PipelineKind::kZeroBubbleV;)
      rank_of.push_back(s);
    return rank_of;
  }
  // Activations forward and their gradients backward, of which a rank of tp or cp has its part.
  int64_t PipelineRank(int64_t rank) const {
    const std::vector<int64_t> rank_of = RankOf();
    int64_t sends = 0;
    for (size_t s = 0; s + 1 < rank_of.size(); ++s) {
      if (rank_of[s] == rank_of[s + 1]) continue;
      sends += (rank_of[s] == rank ? 1 : 0) + (rank_of[s + 1] == rank ? 1 : 0);
    }
    const int64_t ties =
        rank_of.front() != rank_of.back() && (rank == rank_of.front() || rank == rank_of.back());
    return task.micro_batches / data * sends * tokens * m.n_embd * activation /
               (plan.tp * plan.cp) +
           (m.tie_embeddings ? ties * m.vocab_size * m.n_embd / plan.tp * kSum : 0);
  }
  int64_t PipelineParallel() const {
    int64_t bytes = 0;
    for (int64_t r = 0; r < plan.pp; ++r) bytes += PipelineRank(r);
    return bytes * data * plan.tp * plan.cp;
  }

  // Gradients and, where they are sharded, weights.
  void Data(Bytes& all) const {
    // Experts are those of all ranks across which they are split, those of a sequence included.
    const int64_t sharing = plan.data_ranks_of_experts(), experts = m.n_layer * Experts();
    const int64_t copies = plan.cp / std::min(plan.cp, plan.ep);
    if (!plan.is_sharded()) {
      // Each use of a tied weight is summed by itself where micro-batches are.
      const bool apart = m.tie_embeddings && (!task.fast || plan.pp > 0);
      const int64_t model = Model() + (apart ? m.vocab_size * m.n_embd : 0);
      if (GradientsAreTheReducers()) {
        all["dp+cp"] = Reduce(data * plan.cp, (model + experts) * kSum);
        return;
      }
      all["dp"] = plan.cp * Reduce(data, model * kSum);
      // An expert's rank has tokens of all its group's samples, which the ordered sum adds first:
      // so a rank adds none of its own micro-batches' other gradients, and sends each of them.
      if (sharing > 1 && !task.fast) {
        const int64_t micro = task.micro_batches / data;
        all["dp"] = plan.cp * Scatter(data, (micro + 1) * model * kSum);
      }
      all["edp"] = copies * Reduce(data / sharing, experts * kSum);
      if (sharing == 1) all["dp"] += std::exchange(all["edp"], 0);
      return;
    }
    const int64_t micro = task.micro_batches / data, model = Model(), head = OnRanks(Head());
    const bool keeps = plan.options.reshard == dist::Reshard::kAfterStep || plan.pp > 0;
    const bool twice = plan.options.reshard == dist::Reshard::kAfterForward && !keeps;
    const auto bytes = [&](int64_t elements, int64_t kept) {
      const int64_t gathered =
          keeps ? elements : micro * (elements + (twice ? elements - kept : 0));
      const int64_t scattered =
          plan.options.accumulate == dist::Accumulate::kShards ? micro * elements : elements;
      return gathered * activation + scattered * kSum;
    };
    all[plan.copies > 1 ? "shard" : "dp"] =
        plan.copies * (plan.cp * Scatter(plan.shards, bytes(model, head)) +
                       copies * Scatter(plan.shards / sharing, bytes(experts, 0)));
    all["replicate"] =
        plan.cp * Reduce(plan.copies, model * kSum) + copies * Reduce(plan.copies, experts * kSum);
  }

  const Task task;
  const Plan plan;
  const GptConfig m;
  const int64_t data, keys, tokens, activation;
};

}  // namespace lockstep::models
