// Random graphs: backward against forward-mode derivatives, and the engine's guarantees on each of
// them.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>

#include "tests/core/test_ops.h"

namespace lockstep {
namespace {

using test::Values;

// A tensor with the derivatives of its elements with respect to all leaf elements.
struct Dual {
  Tensor value;
  std::vector<std::vector<double>> jacobian;
};

class RandomGraph {
 public:
  explicit RandomGraph(unsigned seed) : random_(seed) {
    const int leaves = 1 + Draw(4);
    columns_ = leaves * 4;
    for (int l = 0; l < leaves; ++l) {
      std::vector<double> values(4);
      for (double& v : values) v = std::uniform_real_distribution<double>(-1, 1)(random_);
      Dual leaf{test::LeafOf(values), {}};
      leaf.value.autograd()->leaf->set_name(StrCat("leaf", l));
      for (int i = 0; i < 4; ++i) {
        leaf.jacobian.emplace_back(columns_, 0.0);
        leaf.jacobian.back()[l * 4 + i] = 1;
      }
      leaves_.push_back(leaf.value);
      pool_[4].push_back(leaf);
    }
    if (Draw(2)) {  // a destination of another dtype is exact enough to be compared below only in
                    // f64
      destination_ = Tensor::Full({4}, NAN, DType::kF64);
      leaves_[0].autograd()->leaf->SetDestination(destination_);
    }
    const int operations = 1 + Draw(25);
    for (int i = 0; i < operations; ++i) AddOperation();
  }

  // Roots with random gradients: each tensor with some probability, the last one always.
  void MakeRoots(std::vector<Tensor>& roots, std::vector<Tensor>& grads,
                 std::vector<double>& want) {
    want.assign(columns_, 0.0);
    for (auto& [size, tensors] : pool_) {
      for (const Dual& t : tensors) {
        if (Draw(3) != 0 && &t != &pool_[4].back()) continue;
        std::vector<double> grad(size);
        for (double& g : grad) g = std::uniform_real_distribution<double>(-1, 1)(random_);
        for (int64_t i = 0; i < size; ++i) {
          for (int c = 0; c < columns_; ++c) want[c] += grad[i] * t.jacobian[i][c];
        }
        roots.push_back(t.value);
        grads.push_back(Tensor::FromVector(grad, {size}));
      }
    }
  }

  const std::vector<Tensor>& leaves() const { return leaves_; }
  void ZeroGrad() const {
    for (const Tensor& leaf : leaves_) leaf.ZeroGrad();
    if (destination_.defined()) destination_.Fill(NAN);
  }
  // Leaves that backward did not reach have zeros here.
  std::vector<double> Grads() const {
    std::vector<double> all;
    for (const Tensor& leaf : leaves_) {
      std::vector<double> grad = Values(leaf.grad());
      grad.resize(4);
      all.insert(all.end(), grad.begin(), grad.end());
    }
    return all;
  }

 private:
  int Draw(int n) { return std::uniform_int_distribution<int>(0, n - 1)(random_); }
  const Dual& Pick(int64_t size) {
    auto& from = pool_[size];
    return from[Draw(static_cast<int>(from.size()))];
  }

  // jacobian = p * a' + q * b', rowwise.
  Dual Combine(const Tensor& y, const Dual& a, const Dual& b, const std::vector<double>& p,
               const std::vector<double>& q) const {
    Dual out{y, a.jacobian};
    for (size_t i = 0; i < out.jacobian.size(); ++i) {
      for (int c = 0; c < columns_; ++c) {
        out.jacobian[i][c] = p[i] * a.jacobian[i][c] + q[i] * b.jacobian[i][c];
      }
    }
    return out;
  }

  void AddOperation() {
    const int64_t size = !pool_[2].empty() && Draw(3) == 0 ? 2 : 4;
    const Dual a = Pick(size), b = Pick(size);
    const std::vector<double> one(size, 1.0), none(size, 0.0), half(size, 0.5);
    switch (Draw(7)) {
      case 0:
      case 1:
        pool_[size].push_back(Combine(test::Add(a.value, b.value), a, b, one, one));
        break;
      case 2:
        pool_[size].push_back(Combine(test::Scale(a.value, 0.5), a, a, half, none));
        break;
      case 3: {
        const Dual whole = Pick(4);
        const auto [first, second] = test::Split(whole.value);
        const auto& j = whole.jacobian;
        pool_[2].push_back({first, {j[0], j[1]}});
        pool_[2].push_back({second, {j[2], j[3]}});
        break;
      }
      default: {
        using Function = Tensor (*)(const Tensor&, const Tensor&);
        const Function mul =
            std::array<Function, 3>{test::Mul, test::MulOpeningFirst, test::MulMixed}[Draw(3)];
        pool_[size].push_back(
            Combine(mul(a.value, b.value), a, b, Values(b.value), Values(a.value)));
      }
    }
  }

  std::mt19937 random_;
  int columns_;
  std::vector<Tensor> leaves_;
  Tensor destination_;
  std::map<int64_t, std::vector<Dual>> pool_;
};

struct ReadyRecorder : BackwardObserver {
  std::vector<Leaf*> planned, ready;
  std::map<Leaf*, std::vector<double>> gradients;
  int ends = 0;
  void OnBegin(const BackwardPlan& plan) override {
    for (const auto& leaf : plan.leaves) planned.push_back(leaf.get());
  }
  void OnLeafReady(Leaf& leaf) override {
    ready.push_back(&leaf);
    gradients[&leaf] = Values(leaf.grad());
  }
  void OnEnd() override { ++ends; }
};

TEST(RandomGraphTest, GradientsOrderAndDeferral) {
  for (unsigned seed = 0; seed < 1500; ++seed) {
    SCOPED_TRACE(StrCat("seed ", seed));
    RandomGraph graph(seed);
    std::vector<Tensor> roots, root_grads;
    std::vector<double> want;
    graph.MakeRoots(roots, root_grads, want);
    std::vector<std::vector<double>> given;
    for (const Tensor& g : root_grads) given.push_back(Values(g));

    ReadyRecorder recorder;
    Backward(roots, root_grads, {.retain_graph = true, .observers = {&recorder}});
    const std::vector<double> got = graph.Grads();
    for (size_t i = 0; i < want.size(); ++i) {
      ASSERT_NEAR(got[i], want[i], 1e-12 * (1 + std::abs(want[i])));
    }
    ASSERT_EQ(recorder.ready, recorder.planned);
    ASSERT_EQ(recorder.ends, 1);
    for (const auto& [leaf, gradient] : recorder.gradients) {
      ASSERT_EQ(gradient, Values(leaf->grad())) << "ready before the last addition";
    }

    graph.ZeroGrad();
    ReadyRecorder late;
    DeferredGradients deferred;
    Backward(roots, root_grads,
             {.retain_graph = true,
              .observers = {&late},
              .defer = [&](const Leaf& l) { return seed % 2 || l.name() != "leaf1"; },
              .deferred = &deferred});
    deferred.Run();
    ASSERT_EQ(graph.Grads(), got) << "deferred";
    std::sort(late.ready.begin(), late.ready.end());
    std::sort(recorder.ready.begin(), recorder.ready.end());
    ASSERT_EQ(late.ready, recorder.ready);
    ASSERT_EQ(late.ends, 1);

    graph.ZeroGrad();
    Backward(roots, root_grads);
    ASSERT_EQ(graph.Grads(), got) << "again";
    for (size_t i = 0; i < given.size(); ++i) ASSERT_EQ(Values(root_grads[i]), given[i]);
  }
}

}  // namespace
}  // namespace lockstep
