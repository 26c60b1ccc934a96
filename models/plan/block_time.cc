#include "models/plan/block_time.h"

#include <algorithm>
#include <cmath>

namespace lockstep::models {
namespace {

// Tokens of a micro-batch that the tp ranks compute together.
double RowsOf(const PlannedModel& m, const Layout& l) {
  return static_cast<double>(l.batch) * m.window / static_cast<double>(l.mesh.cp);
}

class Block {
 public:
  Block(const PlannedModel& m, const Layout& l, const Cluster& c)
      : model_(m),
        layout_(l),
        cluster_(c),
        rows_(RowsOf(m, l)),
        tp_(static_cast<double>(l.mesh.tp)) {}

  BlockTime Time() {
    const double width = model_.gated ? 2 : 1;
    const double query = AddProduct(rows_, (model_.queries + 2 * model_.keys) / tp_, model_.embd);
    AddProduct(rows_, model_.embd, model_.queries / tp_);
    double up = 0, down = 0;
    if (model_.experts > 0) {
      AddExperts(&up, &down);
    } else {
      up = AddProduct(rows_, width * model_.inner / tp_, model_.embd);
      down = AddProduct(rows_, model_.embd, model_.inner / tp_);
    }
    AddAttention();
    const double elementwise = AddElementwise();
    AddTensorMessages();
    AddContextMessages();
    AddRecomputation(query, up, down, elementwise);
    time_.stream_bytes = model_.weight_bytes * rows_ * model_.embd / tp_;
    return time_;
  }

 private:
  // [rows, k] x [k, n] and its two gradients; returns the forward's seconds.
  double AddProduct(double rows, double n, double k, double times = 1) {
    const double forward = times * ProductSeconds(cluster_, rows, n, k, model_.weight_bytes);
    time_.products.forward += forward;
    time_.products.input_grad += times * ProductSeconds(cluster_, rows, k, n, model_.weight_bytes);
    time_.products.weight_grad += times * ProductSeconds(cluster_, n, k, rows, model_.weight_bytes);
    return forward;
  }

  // Tokens go to their experts and back; each rank has some experts, with as many rows each.
  void AddExperts(double* up, double* down) {
    const double width = model_.gated ? 2 : 1, inner = model_.expert_inner;
    const double own = model_.experts / (static_cast<double>(layout_.mesh.ep) * tp_);
    const double rows = rows_ * model_.experts_used / tp_ / own;  // of an expert
    *up = AddProduct(rows, width * inner, model_.embd, own);
    *down = AddProduct(rows, model_.embd, inner, own);
    if (const double shared = model_.shared_inner / tp_; shared > 0) {
      *up += AddProduct(rows_, width * shared, model_.embd);
      *down += AddProduct(rows_, model_.embd, shared);
    }
    const double there =
        RingSeconds(cluster_.Between(layout_.mesh.ep, layout_.mesh.tp), layout_.mesh.ep,
                    model_.weight_bytes * rows_ * model_.experts_used * model_.embd / tp_);
    time_.experts = {2 * there, 2 * there, 0};
  }

  // Backward makes five products where forward makes two.
  void AddAttention() {
    const double flops = 4 * rows_ * model_.attended * model_.queries / tp_ / cluster_.peak;
    time_.attention.forward = cluster_.launch_seconds + flops / cluster_.attention_share;
    time_.attention.input_grad =
        cluster_.launch_seconds + 2.5 * flops / cluster_.attention_backward_share;
  }

  // What kernels between products read and write, in numbers a token: two norms that also add the
  // branch before (4 embd each), queries and keys turned in place, the activation, and rows on
  // their way to experts. Backward reads what forward wrote as well.
  double AddElementwise() {
    const double used = model_.experts_used, in_and_out = model_.gated ? 3 : 2;
    const double inner = model_.experts > 0
                             ? used * (in_and_out * model_.expert_inner + 4 * model_.embd)
                             : in_and_out * model_.inner;
    const double norms = 8 * model_.embd;
    const double numbers = norms + 2 * (model_.queries + model_.keys) + inner;
    time_.norms = norms / numbers;
    time_.activations = inner / numbers;
    const double seconds =
        ElementwiseSeconds(cluster_, model_.weight_bytes * rows_ * numbers / tp_);
    time_.host = {cluster_.host_seconds, cluster_.host_seconds, 0};
    time_.other = {seconds + 4 * cluster_.launch_seconds,
                   1.5 * seconds + 4 * cluster_.launch_seconds, 0};
    return seconds;
  }

  // Between layers each rank has a part of the sequence: a column-parallel product gathers it, a
  // row-parallel one scatters sums; backward does the reverse, and gathers inputs again for the
  // gradients of weights.
  void AddTensorMessages() {
    if (layout_.mesh.tp == 1) return;
    const double one = RingSeconds(cluster_.Between(layout_.mesh.tp, 1), layout_.mesh.tp,
                                   model_.weight_bytes * rows_ * model_.embd);
    time_.tensor = {4 * one, 4 * one, 2 * one};
  }

  // Keys and values are gathered, their gradients scattered, in fp32.
  void AddContextMessages() {
    if (layout_.mesh.cp == 1) return;
    const Link link = cluster_.Between(layout_.mesh.cp, layout_.mesh.tp);
    const double numbers =
        2 * model_.keys / tp_ * static_cast<double>(layout_.batch) * model_.window;
    time_.context = {RingSeconds(link, layout_.mesh.cp, model_.weight_bytes * numbers),
                     RingSeconds(link, layout_.mesh.cp, (model_.weight_bytes + 4.0) * numbers), 0};
  }

  void AddRecomputation(double query, double up, double down, double elementwise) {
    const std::string& what = layout_.recompute;
    const double share = BlockShare(layout_, model_.layers);
    double kept = 8 * model_.embd + 2 * (model_.queries + model_.keys) + 3 * model_.inner;
    if (share > 0) {
      const double messages = time_.tensor.forward + time_.context.forward + time_.experts.forward;
      time_.recomputed = {.products = share * (time_.products.forward - down),
                          .attention = share * time_.attention.forward,
                          .other = share * (time_.other.forward + time_.host.forward),
                          .messages = share * messages};
      kept = (1 - share) * kept + share * model_.embd;
    } else if (what == "attention") {
      time_.recomputed = {
          .products = query, .attention = time_.attention.forward, .other = elementwise / 3};
      kept -= 2 * (model_.queries + model_.keys);
    } else if (what == "mlp") {
      time_.recomputed = {.products = up, .other = elementwise / 3};
      kept -= 3 * model_.inner;
    } else if (what != "none") {
      time_.recomputed = {.other = elementwise / 2};
      kept -= 2 * model_.embd + model_.inner;
    }
    time_.kept_bytes = model_.weight_bytes * rows_ * kept / tp_;
  }

  const PlannedModel& model_;
  const Layout& layout_;
  const Cluster& cluster_;
  const double rows_, tp_;
  BlockTime time_;
};

}  // namespace

double ProductSeconds(const Cluster& c, double m, double n, double k, int bytes) {
  const double tiles = std::ceil(m / c.tile) * std::ceil(n / c.tile);
  const auto units = static_cast<double>(c.units);
  const double fill = m * n / (std::ceil(tiles / units) * units * c.tile * c.tile);
  const double ramp = k / (k + c.tile);
  const double flops = 2 * m * n * k / (c.peak * c.product_share * fill * ramp);
  const double moved = bytes * (m * n + m * k + n * k) / c.memory_per_second;
  return std::max({flops, moved, c.launch_seconds});
}

double MemorySeconds(const Cluster& c, double bytes) { return bytes / c.memory_per_second; }

double ElementwiseSeconds(const Cluster& c, double bytes) {
  return bytes / c.elementwise_per_second;
}

double RingSeconds(const Link& link, int64_t ranks, double bytes) {
  if (ranks <= 1 || bytes <= 0) return 0;
  const auto n = static_cast<double>(ranks);
  // NCCL's trees and rings in several channels: latency grows with the logarithm.
  return link.seconds * std::log2(n) + bytes * (n - 1) / n / link.bytes_per_second;
}

BlockTime BlockTimeOf(const PlannedModel& m, const Layout& l, const Cluster& c) {
  return Block(m, l, c).Time();
}

BlockTime HeadTimeOf(const PlannedModel& m, const Layout& l, const Cluster& c) {
  const double rows = RowsOf(m, l), columns = m.vocabulary / static_cast<double>(l.mesh.tp);
  BlockTime t;
  t.products = {ProductSeconds(c, rows, columns, m.embd, m.weight_bytes),
                ProductSeconds(c, rows, m.embd, columns, m.weight_bytes),
                ProductSeconds(c, columns, m.embd, rows, m.weight_bytes)};
  // Logits are written, read for the loss, and overwritten by their gradient.
  t.other = {ElementwiseSeconds(c, 3 * m.weight_bytes * rows * columns),
             ElementwiseSeconds(c, 6 * m.weight_bytes * rows * m.embd), 0};
  t.host = {c.host_seconds, c.host_seconds, 0};
  const double one =
      RingSeconds(c.Between(l.mesh.tp, 1), l.mesh.tp, m.weight_bytes * rows * m.embd);
  t.tensor = {2 * one, 2 * one, 0};
  return t;
}

}  // namespace lockstep::models
