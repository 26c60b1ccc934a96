// The first half of Lockstep's part of models/examples/pytorch.md: what stands between "// [TITLE]"
// and "// [end]" here is what the page shows under that title.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/examples/side_by_side.h"

namespace lockstep {
namespace {

using testing::ElementsAre;

TEST(SideBySide, Makers) {
  // [Tensors]
  const auto x = Tensor::FromVector<float>({1, 2, 3, 4, 5, 6}, {2, 3});
  const Tensor zeros = Tensor::Zeros({2, 3}, DType::kF32);
  const Tensor sevens = Tensor::Full({2, 3}, 7, DType::kF32);
  const Tensor i = ops::Arange(5);  // int64
  const Tensor t = ops::Linspace(0, 1, 5);
  const Tensor identity = ops::Eye(3);
  const Tensor one_hot = ops::OneHot(i, /*classes=*/5);
  // [end]
  EXPECT_EQ(x.shape(), Shape({2, 3}));
  EXPECT_EQ(Values(x + zeros), Values(x));
  EXPECT_THAT(Values(sevens), testing::Each(7));
  EXPECT_THAT(i.ToVector<int64_t>(), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(Values(t), ElementsAre(0, 0.25f, 0.5f, 0.75f, 1));
  EXPECT_THAT(Values(ops::MatMul(x, identity)), ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_EQ(Values(one_hot), Values(ops::Eye(5)));
}

TEST(SideBySide, Random) {
  // [Random numbers]
  const Tensor u = ops::Rand({2, 3}, /*seed=*/1);
  const Tensor n = ops::Randn({2, 3}, /*seed=*/1);
  const Tensor digits = ops::RandInt(0, 10, {100}, /*seed=*/1);
  // [end]
  EXPECT_EQ(Values(u), Values(ops::Rand({2, 3}, 1)));
  EXPECT_NE(Values(u), Values(ops::Rand({2, 3}, 2)));
  EXPECT_NE(Values(u), Values(n));
  EXPECT_THAT(digits.ToVector<int64_t>(),
              testing::Each(testing::AllOf(testing::Ge(0), testing::Lt(10))));
}

TEST(SideBySide, Views) {
  const Tensor x = Matrix();
  // [Shapes and views]
  const int64_t rows = x.dim(0);
  const Tensor flat = x.View({-1});
  const Tensor columns = x.Transpose(0, 1);  // a view, as in PyTorch
  const Tensor copy = columns.Contiguous();
  const Tensor wide = x.Unsqueeze(0).Expand({4, 2, 3});
  const Tensor last = wide.Permute({1, 2, 0});
  // [end]
  EXPECT_EQ(rows, 2);
  EXPECT_EQ(flat.shape(), Shape({6}));
  EXPECT_THAT(Values(copy), ElementsAre(1, 4, 2, 5, 3, 6));
  EXPECT_EQ(last.shape(), Shape({2, 3, 4}));
}

TEST(SideBySide, Arithmetic) {
  const Tensor x = Matrix();
  // [Arithmetic and broadcasting]
  const Tensor centred = x - ops::Mean(x, {0});
  const Tensor y = 2 * centred + 1 / x;
  const Tensor bell = ops::Exp(-ops::Square(x) / 2);
  const Tensor root = ops::Pow(x, 0.5);
  const Tensor limited = ops::Clamp(x, 2, 5);
  const Tensor larger = ops::Maximum(x, limited);
  // [end]
  EXPECT_THAT(Values(centred), ElementsAre(-1.5f, -1.5f, -1.5f, 1.5f, 1.5f, 1.5f));
  EXPECT_FLOAT_EQ(Values(y)[1], -2.5f);
  EXPECT_FLOAT_EQ(Values(bell)[0], std::exp(-0.5f));
  EXPECT_FLOAT_EQ(Values(root)[3], 2);
  EXPECT_THAT(Values(limited), ElementsAre(2, 2, 3, 4, 5, 5));
  EXPECT_THAT(Values(larger), ElementsAre(2, 2, 3, 4, 5, 6));
}

TEST(SideBySide, Comparisons) {
  const Tensor x = Matrix();
  // [Comparisons and masks]
  const Tensor inside = (x > 1) & (x <= 5);  // bool
  const Tensor kept = ops::Where(inside, x, 0);
  const Tensor twos = ops::Equal(x, 2);  // == is not overloaded
  const Tensor count = ops::Sum(inside.To(DType::kF32));
  const bool any = ops::Any(ops::IsNan(x)).Item() != 0;
  // [end]
  EXPECT_THAT(Values(kept), ElementsAre(0, 2, 3, 4, 5, 0));
  EXPECT_THAT(Values(twos), ElementsAre(0, 1, 0, 0, 0, 0));
  EXPECT_EQ(count.Item(), 4);
  EXPECT_FALSE(any);
}

TEST(SideBySide, Indexing) {
  const Tensor x = Matrix().Clone();
  // [Indexing]
  const Tensor row = x.Slice(0, 1, 2).Squeeze(0);
  const Tensor middle = x.Slice(1, 1, 3);
  const auto i = Tensor::FromVector<int64_t>({2, 0}, {2});
  const Tensor picked = ops::IndexSelect(x, 1, i);
  const Tensor each = ops::Gather(x, 1, i.View({2, 1}));
  const Tensor added = ops::ScatterAdd(x, 1, i.View({2, 1}), each);
  x.Slice(0, 0, 1).Fill(0);  // in place
  // [end]
  EXPECT_THAT(Values(row), ElementsAre(4, 5, 6));
  EXPECT_THAT(Values(middle), ElementsAre(0, 0, 5, 6)) << "a view";
  EXPECT_THAT(Values(picked), ElementsAre(3, 1, 6, 4));
  EXPECT_THAT(Values(each), ElementsAre(3, 4));
  EXPECT_THAT(Values(added), ElementsAre(1, 2, 6, 8, 5, 6));
  EXPECT_THAT(Values(x), ElementsAre(0, 0, 0, 4, 5, 6));
}

TEST(SideBySide, Reductions) {
  const Tensor x = Matrix();
  // [Reductions]
  const double total = ops::Sum(x).Item();
  const Tensor means = ops::Mean(x, 1);
  const Tensor highest = ops::Max(x, {-1}, /*keepdim=*/true);
  const Tensor variance = ops::Var(x, {0});
  const Tensor length = ops::Norm(x);
  const Tensor evidence = ops::LogSumExp(x, {1});
  const Tensor running = ops::CumSum(x, /*dim=*/1);
  // [end]
  EXPECT_EQ(total, 21);
  EXPECT_THAT(Values(means), ElementsAre(2, 5));
  EXPECT_EQ(highest.shape(), Shape({2, 1}));
  EXPECT_THAT(Values(variance), testing::Each(4.5f));
  EXPECT_FLOAT_EQ(static_cast<float>(length.Item()), std::sqrt(91.0f));
  EXPECT_NEAR(Values(evidence)[0], std::log(std::exp(1) + std::exp(2) + std::exp(3)), 1e-6);
  EXPECT_THAT(Values(running), ElementsAre(1, 3, 6, 4, 9, 15));
}

TEST(SideBySide, ArgMaxAndTopK) {
  const auto logits = Tensor::FromVector<float>({1, 7, 3, 9, 5, 6}, {2, 3});
  const auto labels = Tensor::FromVector<int64_t>({1, 2}, {2});
  // [Arg max, top k, accuracy]
  const Tensor best = ops::ArgMax(logits, {1});
  const auto [values, indices] = ops::TopK(logits, 2);
  const auto sorted = ops::Sort(logits, 1, /*descending=*/true);
  const Tensor right = ops::Equal(best, labels);
  const double accuracy = ops::Mean(right.To(DType::kF32)).Item();
  // [end]
  EXPECT_THAT(best.ToVector<int64_t>(), ElementsAre(1, 0));
  EXPECT_THAT(Values(values), ElementsAre(7, 3, 9, 6));
  EXPECT_THAT(indices.ToVector<int64_t>(), ElementsAre(1, 2, 0, 2));
  EXPECT_THAT(Values(sorted.values), ElementsAre(7, 3, 1, 9, 6, 5));
  EXPECT_EQ(accuracy, 0.5);
}

TEST(SideBySide, Joining) {
  const Tensor a = Matrix(), b = a + 6;
  // [Joining and splitting]
  const Tensor both = ops::Concat({a, b}, 0);
  const Tensor pair = ops::Stack({a, b});
  const std::vector<Tensor> parts = both.Split({1, 3}, 0);
  const std::vector<Tensor> halves = both.Chunk(2, 0);
  const Tensor padded = ops::Pad(a, {{0, 0}, {1, 2}});
  // [end]
  EXPECT_EQ(both.shape(), Shape({4, 3}));
  EXPECT_EQ(pair.shape(), Shape({2, 2, 3}));
  EXPECT_EQ(parts[1].shape(), Shape({3, 3}));
  EXPECT_EQ(Values(halves[1]), Values(b));
  EXPECT_EQ(padded.shape(), Shape({2, 6}));
}

TEST(SideBySide, MatMul) {
  const Tensor a = Matrix(), v = ops::Arange(3).To(DType::kF32);
  const Tensor many = ops::Randn({5, 2, 3}, 1), weight = a, bias = ops::Randn({2}, 2);
  // [Matrix products]
  const Tensor square = ops::MatMul(a, a.Transpose(0, 1));
  const Tensor vector = ops::MatMul(a, v);
  const Tensor batch = ops::MatMul(many, a.Transpose(0, 1));
  const Tensor affine = ops::Linear(many, weight, bias);
  // [end]
  EXPECT_THAT(Values(square), ElementsAre(14, 32, 32, 77));
  EXPECT_THAT(Values(vector), ElementsAre(8, 17));
  EXPECT_EQ(batch.shape(), Shape({5, 2, 2}));
  EXPECT_LT(ops::Max(ops::Abs(affine - batch - bias)).Item(), 1e-5);
}

TEST(SideBySide, Devices) {
  const Tensor x = Matrix();
  nn::Sequential model;
  Build(model);
  // [Devices and dtypes]
  const Device device = cuda::ParseDevice("auto");
  const Tensor there = x.To(device);
  const Tensor half = there.To(DType::kBF16);
  const Tensor back = half.To(kCpu).To(DType::kF32);
  const bool on_gpu = there.device().is_cuda();
  model.Materialize(device, /*seed=*/1, DType::kF32);
  // [end]
  EXPECT_EQ(half.dtype(), DType::kBF16);
  EXPECT_EQ(Values(back), Values(x));
  EXPECT_EQ(on_gpu, device != kCpu);
  EXPECT_EQ(model.Parameters()[0]->device(), device);
}

TEST(SideBySide, Printing) {
  const Tensor x = Matrix();
  const Output output;
  // [Printing, and values on the host]
  std::cout << x << "\n";
  const double mean = ops::Mean(x).Item();
  const std::vector<float> list = x.ToVector<float>();
  const float* elements = x.data<float>();  // of a CPU tensor
  // [end]
  EXPECT_EQ(output.text(), "[[1., 2., 3.],\n [4., 5., 6.]] f32[2, 3] on cpu\n");
  EXPECT_EQ(mean, 3.5);
  EXPECT_EQ(list.size(), 6u);
  EXPECT_EQ(elements[5], 6);
}

TEST(SideBySide, Gradients) {
  const Tensor x = Matrix(), y = Tensor::FromVector<float>({1, 0}, {2});
  // [Gradients]
  Tensor w = Tensor::Zeros({3}, DType::kF32);
  w.SetRequiresGrad();
  const Tensor loss = ops::MseLoss(ops::MatMul(x, w), y);
  Backward(loss);
  const Tensor gradient = w.grad();
  w.ZeroGrad();
  // [end]
  EXPECT_THAT(Values(gradient), ElementsAre(-1, -2, -3));
}

TEST(SideBySide, WithoutGradients) {
  Tensor w = Tensor::Full({3}, 1, DType::kF32);
  w.SetRequiresGrad();
  Backward(ops::Sum(ops::Square(w)));
  const double lr = 0.1;
  // [Without gradients]
  {
    const NoGrad no_grad;
    w.CopyFrom(w - lr * w.grad());
  }
  const Tensor constant = ops::Sum(w).Detach();
  // [end]
  EXPECT_THAT(Values(w), testing::Each(testing::FloatEq(0.8f)));
  EXPECT_FALSE(constant.requires_grad());
}

TEST(SideBySide, Hooks) {
  nn::Sequential model;
  Build(model).Materialize(kCpu, 1);
  Tensor x = Problem().x;
  x.SetRequiresGrad();
  int calls = 0;
  // [Hooks]
  const Tensor y = model(x);
  HookHandle hook = y.RegisterHook([](const Tensor& grad) { return grad * 0.5; });
  model.AddPostForwardHook([&](Module&) { ++calls; });
  Backward(ops::Sum(y));
  hook.Remove();
  // [end]
  const Tensor halved = x.grad().Clone();
  x.ZeroGrad();
  Backward(ops::Sum(model(x)));
  EXPECT_EQ(Values(halved * 2), Values(x.grad()));
  EXPECT_EQ(calls, 1);
}

TEST(SideBySide, Function) {
  Tensor x = Matrix();
  x.SetRequiresGrad();
  // [A function with a gradient of its own]
  const ops::Function cube(
      "cube",
      [](ops::Saved& saved, const Tensor& x) {
        saved.Keep(x);
        return x * x * x;
      },
      [](const ops::Saved& saved, const Tensor& dy) { return dy * 3 * ops::Square(saved[0]); });
  const Tensor y = cube(x);
  // [end]
  Backward(ops::Sum(y));
  EXPECT_THAT(Values(y), ElementsAre(1, 8, 27, 64, 125, 216));
  EXPECT_THAT(Values(x.grad()), ElementsAre(3, 12, 27, 48, 75, 108));
}

}  // namespace
}  // namespace lockstep
