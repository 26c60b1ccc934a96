// What the OpCase of linear does not check: rows that do not depend on each other.
#include "kernels/linear/linear.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <random>

#include "core/autograd/engine.h"
#include "core/autograd/leaf.h"

namespace lockstep {
namespace {

Tensor Random(const Shape& shape, unsigned seed, DType dtype) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(shape.numel()));
  for (float& x : values) x = normal(random);
  return Tensor::FromVector(values, shape).To(dtype);
}

std::string Bytes(const Tensor& x) {
  const Tensor c = x.Contiguous();
  return {static_cast<const char*>(c.raw_data()), static_cast<size_t>(c.bytes())};
}

TEST(Linear, FewRowsHaveTheSameBitsAsAlone) {
  for (DType dtype : {DType::kF32, DType::kF64, DType::kBF16}) {
    for (const auto& [k, n] : {std::pair(1, 1), std::pair(16, 7), std::pair(33, 130),
                               std::pair(100, 64), std::pair(768, 300)}) {
      const Tensor x = Random({kFewRows, k}, 1, dtype), weight = Random({n, k}, 2, dtype);
      const Tensor bias = Random({n}, 3, dtype);
      for (Activation activation : {Activation::kNone, Activation::kGelu}) {
        for (int64_t rows : {int64_t{2}, int64_t{3}, int64_t{8}, kFewRows}) {
          const Tensor y = ops::Linear(x.Slice(0, 0, rows), weight, bias, activation);
          for (int64_t i = 0; i < rows; ++i) {
            ASSERT_EQ(Bytes(y.Slice(0, i, i + 1)),
                      Bytes(ops::Linear(x.Slice(0, i, i + 1), weight, bias, activation)))
                << dtype << " k " << k << " n " << n << " row " << i << " of " << rows;
          }
        }
      }
    }
  }
}

Tensor RandomLeaf(const Shape& shape, unsigned seed, DType dtype) {
  return Random(shape, seed, dtype).SetRequiresGrad();
}

// The leaves of two layers with GELU between them, and graphs over the first layer's result.
struct TwoLayers {
  Tensor x, w1, b1, w2, w3, w4;

  explicit TwoLayers(DType dtype)
      : x(RandomLeaf({20, 24}, 1, dtype)),
        w1(RandomLeaf({40, 24}, 2, dtype)),
        b1(RandomLeaf({40}, 3, dtype)),
        w2(RandomLeaf({16, 40}, 4, dtype)),
        w3(RandomLeaf({8, 40}, 5, dtype)),
        w4(RandomLeaf({8, 16}, 7, dtype)) {}
  std::vector<Tensor> leaves() const { return {x, w1, b1, w2, w3, w4}; }
  Tensor Hidden() const { return ops::Linear(x, w1, b1, Activation::kGelu); }
};

// GELU's derivative is taken with the product before it where nothing else adds to that product,
// and separately where something does, or where the graph is kept: the gradients are the same.
TEST(Linear, GradientsAreTheSameWhereverTheActivationsDerivativeIsTaken) {
  using Graph = std::function<std::vector<Tensor>(const TwoLayers&)>;
  const std::map<std::string, Graph> graphs = {
      {"a chain", [](const TwoLayers& m) { return std::vector{ops::Linear(m.Hidden(), m.w2)}; }},
      {"two readers",
       [](const TwoLayers& m) {
         const Tensor h = m.Hidden();
         return std::vector{ops::Linear(h, m.w2), ops::Linear(h, m.w3)};
       }},
      {"a root",
       [](const TwoLayers& m) {
         const Tensor h = m.Hidden();
         return std::vector{ops::Linear(h, m.w2), h};
       }},
      {"two activations",
       [](const TwoLayers& m) {
         const Tensor h = ops::Linear(m.Hidden(), m.w2, {}, Activation::kGelu);
         return std::vector{ops::Linear(h, m.w4)};
       }},
  };
  for (DType dtype : {DType::kF32, DType::kF64}) {
    for (const auto& [name, graph] : graphs) {
      std::vector<std::vector<std::string>> results;
      for (const bool retain : {true, false}) {
        const TwoLayers m(dtype);
        const std::vector<Tensor> roots = graph(m);
        std::vector<Tensor> grads;
        for (const Tensor& root : roots) grads.push_back(Random(root.shape(), 6, dtype));
        Backward(roots, grads, {.retain_graph = retain});
        results.emplace_back();
        for (const Tensor& leaf : m.leaves()) {
          results.back().push_back(leaf.grad().defined() ? Bytes(leaf.grad()) : "none");
        }
      }
      EXPECT_EQ(results[0], results[1]) << dtype << ", " << name;
    }
  }
}

// The first layer's gradients are what the second one's backward wrote, also when they run later.
TEST(Linear, WeightsWhoseGradientsComeLaterSeeTheActivationsDerivativeOnce) {
  std::vector<std::vector<std::string>> results;
  for (const bool later : {false, true}) {
    const TwoLayers m(DType::kF32);
    const Tensor y = ops::Linear(m.Hidden(), m.w2);
    const Tensor grad = Random(y.shape(), 6, DType::kF32);
    if (later) {
      DeferredGradients deferred;
      const Leaf* const input = m.x.autograd()->leaf.get();
      Backward(y, grad,
               {.defer = [&](const Leaf& leaf) { return &leaf != input; }, .deferred = &deferred});
      deferred.Run();
    } else {
      Backward(y, grad);
    }
    results.emplace_back();
    for (const Tensor& leaf : {m.x, m.w1, m.b1, m.w2}) results.back().push_back(Bytes(leaf.grad()));
  }
  EXPECT_EQ(results[0], results[1]);
}

}  // namespace
}  // namespace lockstep
