// The program of with_lockstep.cc with libtorch.  with_libtorch STEPS
#include <torch/torch.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>

struct MlpImpl : torch::nn::Module {
  MlpImpl() {
    fc1 = register_module("fc1", torch::nn::Linear(2, 64));
    fc2 = register_module("fc2", torch::nn::Linear(64, 64));
    head = register_module("head", torch::nn::Linear(64, 2));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return head(torch::relu(fc2(torch::relu(fc1(x)))));
  }
  torch::nn::Linear fc1{nullptr}, fc2{nullptr}, head{nullptr};
};
TORCH_MODULE(Mlp);

int main(int, char** argv) {
  const int64_t steps = std::atoi(argv[1]);
  torch::manual_seed(1);
  torch::set_num_threads(1);
  Mlp model;
  torch::optim::AdamW adamw(model->parameters(), torch::optim::AdamWOptions(1e-3));
  const torch::Tensor x = torch::randn({32, 2});
  const torch::Tensor labels =
      (x.slice(1, 0, 1) * x.slice(1, 1, 2) > 0).to(torch::kLong).view({32});
  const auto begin = std::chrono::steady_clock::now();
  double loss = 0;
  for (int64_t step = 0; step < steps; ++step) {
    const torch::Tensor mean = torch::nn::functional::cross_entropy(model(x), labels);
    mean.backward();
    adamw.step();
    adamw.zero_grad();
    loss = mean.item<double>();
  }
  const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - begin;
  std::printf("%.3f %.6f\n", time.count() / static_cast<double>(steps), loss);
}
