// The second half of Lockstep's part of models/examples/pytorch.md: what stands between "//
// [TITLE]" and "// [end]" here is what the page shows under that title.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/examples/side_by_side.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

// [Modules]
struct Mlp : Layer {
  explicit Mlp(int64_t hidden)
      : body(this, "body", 2, hidden),
        head(this, "head", hidden, 1),
        scale(AddParameter("scale", {1}, nn::Constant(1), /*decay=*/false)) {}

  Tensor Forward(const Tensor& x) override { return head(ops::Relu(body(x))) * *scale; }

  Child<nn::Linear> body, head;
  std::shared_ptr<Parameter> scale;
};

// [end]

TEST(SideBySide, Module) {
  // [Modules]
  Mlp model(16);
  model.Materialize(kCpu, /*seed=*/1);  // gives the parameters memory
  const Tensor y = model(ops::Rand({8, 2}, /*seed=*/1));

  // [end]
  EXPECT_EQ(y.shape(), Shape({8, 1}));
}

TEST(SideBySide, Sequential) {
  // [Modules]
  nn::Sequential mlp;
  mlp.Add<nn::Linear>(2, 16);
  mlp.Add<nn::Relu>();
  mlp.Add<nn::Linear>(16, 1);
  mlp.Materialize(kCpu, /*seed=*/1);
  // [end]
  EXPECT_EQ(mlp(Problem().x).shape(), Shape({64, 1}));
}

TEST(SideBySide, Layers) {
  const Tensor image = ops::Rand({2, 3, 8, 8}, 1), ids = ops::RandInt(0, 50, {2, 5}, 1);
  // [Layers]
  struct Layers : Module {
    Child<nn::Linear> linear{this, "linear", 8, 4};
    Child<nn::Conv2d> conv{this, "conv", 3, 16, 3, nn::Conv2dOptions{.padding = 1}};
    Child<nn::MaxPool2d> pool{this, "pool", 2};
    Child<nn::BatchNorm2d> batch_norm{this, "batch_norm", 16};
    Child<nn::Embedding> embedding{this, "embedding", 50, 8};
    Child<nn::LayerNorm> layer_norm{this, "layer_norm", 8};
    Child<nn::Dropout> dropout{this, "dropout", 0.1};
  };
  // [end]
  Layers m;
  m.Materialize(kCpu, 1);
  EXPECT_EQ(m.pool(m.batch_norm(m.conv(image))).shape(), Shape({2, 16, 4, 4}));
  EXPECT_EQ(m.linear(m.dropout(m.layer_norm(m.embedding(ids)))).shape(), Shape({2, 5, 4}));
}

TEST(SideBySide, Parameters) {
  Mlp model(16);
  model.Materialize(kCpu, 1);
  const Output output;
  // [Parameters]
  const int64_t count = model.NumParameters();
  for (const auto& [name, parameter] : model.NamedParameters()) {
    std::cout << name << " " << parameter->logical_shape() << "\n";
  }
  for (const auto& parameter : model.body->Parameters()) parameter->SetTrainable(false);
  // [end]
  EXPECT_EQ(count, 1 + 2 * 16 + 16 + 16 + 1);
  EXPECT_THAT(output.text(), HasSubstr("body.weight [16, 2]\n"));
  EXPECT_FALSE(model.body->weight()->trainable());
}

TEST(SideBySide, Initialisation) {
  // [Initialisation]
  nn::Linear layer(3, 4, {.weight_init = nn::Normal(0, 0.02), .bias_init = nn::Constant(0)});
  layer.Materialize(kCpu, /*seed=*/1);
  layer.weight()->value().Detach().Fill(0.5);  // or afterwards
  // [end]
  EXPECT_THAT(Values(layer.weight()->value()), testing::Each(0.5f));
  EXPECT_THAT(Values(layer.bias()->value()), testing::Each(0));
}

TEST(SideBySide, Losses) {
  const Tensor logits = Matrix(), labels = Tensor::FromVector<int64_t>({2, 0}, {2});
  const Tensor target = logits + 1, bits = Tensor::Full({2, 3}, 1, DType::kF32);
  // [Losses]
  const Tensor classes = ops::SoftmaxCrossEntropy(logits, labels);
  const Tensor same = ops::NllLoss(ops::LogSoftmax(logits), labels);
  const Tensor squared = ops::MseLoss(logits, target, Reduction::kSum);
  const Tensor absolute = ops::L1Loss(logits, target);
  const Tensor binary = ops::BceWithLogits(logits, bits);
  // [end]
  EXPECT_NEAR(classes.Item(), same.Item(), 1e-6);
  EXPECT_EQ(squared.Item(), 6);
  EXPECT_EQ(absolute.Item(), 1);
  EXPECT_NEAR(binary.Item(), ops::Mean(ops::Softplus(-logits)).Item(), 1e-6);
}

TEST(SideBySide, Attention) {
  const Tensor q = ops::Randn({2, 5, 4, 8}, 1);  // [B, T, H, D]
  const Tensor k = ops::Randn({2, 5, 4, 8}, 2), v = ops::Randn({2, 5, 4, 8}, 3);
  const Tensor x = ops::Randn({2, 5, 32}, 4), memory = ops::Randn({2, 7, 32}, 5);
  // [Attention and masks]
  const Tensor fused = ops::CausalAttention(q, k, v);  // [B, T, H, D]
  const Tensor ones = Tensor::Full({5, 5}, 1, DType::kBool);
  const Tensor masked = ops::Attention(q, k, v, {.mask = ops::Tril(ones)});
  nn::MultiheadAttention cross(/*dim=*/32, /*n_head=*/4);
  cross.Materialize(kCpu, /*seed=*/1);
  const Tensor y = cross(x, memory, memory);
  // [end]
  EXPECT_LT(ops::Max(ops::Abs(fused - masked)).Item(), 1e-5);
  EXPECT_EQ(y.shape(), Shape({2, 5, 32}));
}

TEST(SideBySide, ParameterGroups) {
  Mlp model(16);
  model.Materialize(kCpu, 1);
  // [Optimizers, parameter groups, schedules]
  optim::Sgd sgd(model.Parameters(), {.momentum = 0.9});
  std::vector<optim::ParameterGroup> groups(2);
  groups[0] = {.parameters = model.body->Parameters(), .lr_factor = 0.1};
  groups[1] = {.parameters = model.head->Parameters(), .weight_decay = 0.0};
  optim::AdamW adamw(groups, {.weight_decay = 0.1});
  const optim::LrSchedule lr({.lr = 0.1, .min_lr = 0.01, .warmup = 10, .decay_steps = 100});
  const double now = lr(/*step=*/50);
  // [end]
  EXPECT_LT(now, 0.1);
  EXPECT_GT(now, 0.01);
  EXPECT_EQ(sgd.parameters().size(), 5u);
  EXPECT_EQ(adamw.parameters().size(), 4u);
}

TEST(SideBySide, Loop) {
  nn::Sequential model;
  Build(model).Materialize(kCpu, 1);
  const auto [x, y] = Problem();
  std::vector<double> losses, norms;
  // [A training loop]
  optim::AdamW adamw(model.Parameters());
  StepState state(kCpu, /*seed=*/1);
  const optim::LrSchedule lr({.lr = 0.02, .decay_steps = 200});
  for (int64_t step = 0; step < 200; ++step) {
    const auto training = adamw.BeginStep(state, step, lr(step));
    const Tensor loss = ops::MseLoss(model(x), y);
    Backward(loss);
    optim::ClipGradNorm(model.Parameters(), 1.0, state);
    adamw.Step(state);
    adamw.ZeroGrad();
    losses.push_back(loss.Item());
    norms.push_back(state.Read().grad_norm);  // before clipping
  }
  // [end]
  EXPECT_LT(losses.back(), 0.1 * losses.front());
  EXPECT_GT(norms.front(), 1);
}

TEST(SideBySide, Evaluation) {
  nn::Sequential model, plain;
  Build(model).Add<nn::Dropout>(0.5);
  model.Materialize(kCpu, 1);
  Build(plain).Materialize(kCpu, 1);
  const auto [x, y] = Problem();
  // [Evaluation]
  double loss = 0;
  {
    const NoGrad no_grad;  // outside of a step, dropout and batch norm evaluate
    loss = ops::MseLoss(model(x), y).Item();
  }
  // [end]
  EXPECT_EQ(loss, ops::MseLoss(plain(x), y).Item());
}

TEST(SideBySide, EarlyStopping) {
  nn::Sequential model;
  Build(model).Materialize(kCpu, 1);
  const std::string folder = testing::TempDir();
  const Tensor bias = model.Parameters().back()->value().Detach();
  int epochs = 0;
  const auto TrainEpoch = [&] { bias.Fill(++epochs); };
  const auto Evaluate = [&] { return std::abs(epochs - 3); };
  // [Evaluation]

  // Early stopping: at the third evaluation that is not the best, with the weights of the best.
  double best = HUGE_VAL;
  int waited = 0;
  while (waited++ < 3) {
    TrainEpoch();
    const double loss = Evaluate();
    if (loss < best) {
      best = loss;
      waited = 0;
      nn::SaveModule(model, folder + "/best.safetensors");
    }
  }
  nn::LoadModule(model, folder + "/best.safetensors");
  // [end]
  EXPECT_EQ(epochs, 6);
  EXPECT_EQ(bias.Item(), 3);
}

TEST(SideBySide, Files) {
  nn::Sequential model, other;
  Build(model).Materialize(kCpu, 1);
  Build(other).Materialize(kCpu, 2);
  optim::AdamW adamw(model.Parameters());
  StepState state(kCpu, 1);
  const auto [x, y] = Problem();
  {
    const auto training = adamw.BeginStep(state, /*step=*/0, /*lr=*/0.01);
    Backward(ops::MseLoss(model(x), y));
    adamw.Step(state);
    adamw.ZeroGrad();
  }
  const std::string folder = testing::TempDir();
  const Tensor mean = Matrix();
  // [Saving and loading]
  nn::SaveModule(model, folder + "/model.safetensors");
  nn::LoadModule(other, folder + "/model.safetensors");
  const SafetensorsItem items[] = {SafetensorsItem::Of("mean", mean)};
  nn::SaveTensors(folder + "/mean.safetensors", items);
  const auto file = SafetensorsFile::Open(folder + "/mean.safetensors");
  const Tensor loaded = file.Get("mean").ToTensor();
  // The weights, the optimizer's state, and the number of the next step:
  dist::SaveTraining(folder + "/training", nullptr, model, adamw, state);
  const int64_t step = dist::LoadTraining(folder + "/training", model, adamw, state);
  // [end]
  EXPECT_EQ(Values(model(x)), Values(other(x)));
  EXPECT_EQ(Values(loaded), Values(mean));
  EXPECT_EQ(step, 1);
}

TEST(SideBySide, Batches) {
  const auto [x, y] = Problem();
  int64_t batches = 0;
  Tensor seen = Tensor::Zeros({64}, DType::kF32);
  // [Batches of a data set]
  const data::DistributedSampler sampler(x.dim(0), /*ranks=*/1, /*rank=*/0, {.seed = 1});
  const auto order = sampler.epoch(0);
  for (int64_t i = 0; i < sampler.size(); i += 16) {
    const Tensor items = order.Items(i, 16);
    const Tensor batch_x = ops::IndexSelect(x, 0, items);
    const Tensor batch_y = ops::IndexSelect(y, 0, items);
    // [end]
    EXPECT_EQ(Values(ops::Sum(ops::Square(batch_x), {1}, true)), Values(batch_y));
    seen = seen + ops::Sum(ops::OneHot(items, 64), {0});
    // [Batches of a data set]
    ++batches;
  }
  // [end]
  EXPECT_EQ(batches, 4);
  EXPECT_THAT(Values(seen), testing::Each(1));
}

TEST(SideBySide, MixedPrecision) {
  nn::Sequential model, half;
  Build(model);
  Build(half);
  const auto [x32, y] = Problem();
  const Tensor x = x32.To(DType::kBF16);
  const auto train = [&](auto& step) {
    const double first = step();
    double last = 0;
    for (int i = 0; i < 100; ++i) last = step();
    EXPECT_LT(last, 0.2 * first);
  };
  int64_t number = 0;
  StepState state(kCpu, 1);
  // [Mixed precision]
  // Weights and activations in bf16; the optimizer keeps f32 weights.
  nn::Materialize(model, kCpu, /*seed=*/1, {.compute = DType::kBF16});
  optim::AdamW adamw(model.Parameters());
  // [end]
  auto step = [&] {
    const auto training = adamw.BeginStep(state, number++, 0.01);
    const Tensor loss = ops::MseLoss(model(x).To(DType::kF32), y);
    Backward(loss);
    adamw.Step(state);
    adamw.ZeroGrad();
    return loss.Item();
  };
  train(step);
  EXPECT_EQ(model(x).dtype(), DType::kBF16);

  StepState scaled(kCpu, 1);
  const Tensor x16 = x32.To(DType::kF16);
  number = 0;
  nn::Materialize(half, kCpu, 1, {.compute = DType::kF16});
  optim::AdamW adamw16(half.Parameters());
  const auto begin = [&] { return adamw16.BeginStep(scaled, number++, 0.01); };
  // [Mixed precision]
  // With f16, a loss scale:
  scaled.EnableLossScaling();
  // [end]
  auto step16 = [&] {
    const auto training = begin();
    const Tensor loss = ops::MseLoss(half(x16).To(DType::kF32), y);
    // [Mixed precision]
    Backward(loss, training.Root());
    optim::ClipGradNorm(half.Parameters(), 1.0, scaled);
    adamw16.Step(scaled);
    // [end]
    adamw16.ZeroGrad();
    return loss.Item();
  };
  train(step16);
}

TEST(SideBySide, Recomputation) {
  nn::Sequential model, plain;
  const auto block = std::make_shared<nn::Sequential>();
  Build(*block);
  model.Add(block);
  model.Materialize(kCpu, 1);
  plain.Add(std::make_shared<nn::Sequential>());
  const auto [x, y] = Problem();
  const auto gradients = [&] {
    model.ZeroGrad();
    Backward(ops::MseLoss(model(x), y));
    std::vector<std::vector<float>> all;
    for (const auto& p : model.Parameters()) all.push_back(Values(p->grad()));
    return all;
  };
  const auto before = gradients();
  // [Recomputation of activations]
  model.ReplaceChild("0", nn::Recompute(block));
  // [end]
  EXPECT_EQ(gradients(), before);
}

TEST(SideBySide, SeveralProcesses) {
  nn::Sequential model, large;
  Build(model).Materialize(kCpu, 1);
  Build(large);
  const auto [x, y] = Problem();
  const auto learns = [&](nn::Sequential& m) {
    optim::AdamW adamw(m.Parameters());
    StepState state(kCpu, 1);
    std::vector<double> losses;
    for (int64_t step = 0; step < 50; ++step) {
      const auto training = adamw.BeginStep(state, step, 0.02);
      const Tensor loss = ops::MseLoss(m(x), y);
      Backward(loss, Tensor::Full({}, 1.0, DType::kF32));
      adamw.Step(state);
      adamw.ZeroGrad();
      losses.push_back(loss.Item());
    }
    return losses.back() < 0.2 * losses.front();
  };
  // [Several processes: DDP and FSDP]
  dist::World world(dist::ReadRendezvous());
  const auto group = world.Group();
  // [end]
  {
    // [Several processes: DDP and FSDP]
    dist::DataParallel parallel(group.get(), model);
    // [end]
    EXPECT_TRUE(learns(model));
  }
  // [Several processes: DDP and FSDP]
  // Or, for a model that does not fit:
  dist::FullyShard sharded(group.get(), large);
  large.Materialize(kCpu, /*seed=*/1);
  // [end]
  EXPECT_TRUE(learns(large));
  EXPECT_EQ(world.size(), 1);
}

}  // namespace
}  // namespace lockstep
