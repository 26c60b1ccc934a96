// Where the stack pointer is while products run: a signal that is handled then has its frame
// written there, so anywhere but on a stack it overwrites what is there.
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <ucontext.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "core/philox.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/math.h"

namespace lockstep::cpu {
namespace {

thread_local uintptr_t stack_begin = 0, stack_end = 0;
std::atomic<int64_t> handled{0}, outside{0};

extern "C" void LookAtTheStack(int, siginfo_t*, void* context) {
  const auto* registers = static_cast<const ucontext_t*>(context);
  const auto at = static_cast<uintptr_t>(registers->uc_mcontext.gregs[REG_RSP]);
  ++handled;
  if (at < stack_begin || at >= stack_end) ++outside;
}

// A thread whose signals are handled on a stack of their own, so that the test itself does no harm.
class Watched {
 public:
  Watched() {
    pthread_attr_t attributes;
    void* begin = nullptr;
    size_t size = 0;
    pthread_getattr_np(pthread_self(), &attributes);
    pthread_attr_getstack(&attributes, &begin, &size);
    pthread_attr_destroy(&attributes);
    stack_begin = reinterpret_cast<uintptr_t>(begin);
    stack_end = stack_begin + size;
    const stack_t own = {.ss_sp = memory_.data(), .ss_flags = 0, .ss_size = memory_.size()};
    sigaltstack(&own, nullptr);
  }
  ~Watched() {
    const stack_t none = {.ss_sp = nullptr, .ss_flags = SS_DISABLE, .ss_size = 0};
    sigaltstack(&none, nullptr);
  }
  Watched(const Watched&) = delete;
  Watched& operator=(const Watched&) = delete;

 private:
  std::vector<char> memory_ = std::vector<char>(256 << 10);
};

// Signals for the calling thread, as fast as another can send them.
class Storm {
 public:
  Storm()
      : sender_([this, to = pthread_self()] {
          while (!done_) {
            pthread_kill(to, SIGUSR1);
            std::this_thread::sleep_for(std::chrono::microseconds(5));
          }
        }) {}
  ~Storm() {
    done_ = true;
    sender_.join();
  }
  Storm(const Storm&) = delete;
  Storm& operator=(const Storm&) = delete;

 private:
  std::atomic<bool> done_{false};
  std::thread sender_;
};

template <class T, class C>
void MultiplyInAStorm(GemmArgs::BF16Products bf16 = GemmArgs::BF16Products::kByCpu) {
  struct sigaction action = {}, before = {};
  action.sa_sigaction = LookAtTheStack;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
  sigaction(SIGUSR1, &action, &before);
  handled = outside = 0;
  {
    const Watched watched;
    const Storm storm;
    constexpr int64_t kSize = 700, kLd = kSize + 8, kDeep = 5000;
    std::vector<T> a(kLd * (kDeep + 8)), b(kLd * (kDeep + 8));
    std::vector<C> c(kSize * kLd);
    for (size_t i = 0; i < a.size(); ++i) {
      a[i] = Convert<T>(2 * ToUniform(Philox(1).At(0, static_cast<int64_t>(i))) - 1);
      b[i] = Convert<T>(2 * ToUniform(Philox(2).At(0, static_cast<int64_t>(i))) - 1);
    }
    constexpr int64_t kSizes[] = {1, 2, 7, 8, 33, 64, 128, 257, 700};
    uint64_t draw = 0;
    const auto any = [&](auto n) { return static_cast<int64_t>(Philox(3).At(0, draw++) % n); };
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(1500);
    for (int64_t shapes = 0; shapes < 500 || handled < 2000; ++shapes) {
      GemmArgs g;
      g.m = kSizes[any(9)];
      g.n = kSizes[any(9)];
      g.k = any(8) == 0 ? kDeep : kSizes[any(9)];
      g.transpose_a = any(2) == 0;
      g.transpose_b = any(2) == 0;
      g.accumulate = any(2) == 0;
      g.dtype = DTypeOf<T>;
      g.c_dtype = DTypeOf<C>;
      g.a = a.data();
      g.b = b.data();
      g.c = c.data();
      g.lda = (g.transpose_a ? g.m : g.k) + 4 * any(3);
      g.ldb = (g.transpose_b ? g.k : g.n) + 4 * any(3);
      g.ldc = g.n + 4 * any(3);
      g.bf16 = bf16;
      Gemm(g);
      if (std::chrono::steady_clock::now() > end && shapes >= 100) break;
    }
  }
  sigaction(SIGUSR1, &before, nullptr);
  EXPECT_GT(handled, 100);
  EXPECT_EQ(outside, 0) << "of " << handled << " signals";
}

TEST(GemmSignals, F64KeepsTheStack) { MultiplyInAStorm<double, double>(); }
TEST(GemmSignals, F32KeepsTheStack) { MultiplyInAStorm<float, float>(); }
TEST(GemmSignals, BF16KeepsTheStack) { MultiplyInAStorm<BF16, float>(); }
TEST(GemmSignals, ConvertedBF16KeepsTheStack) {
  MultiplyInAStorm<BF16, BF16>(GemmArgs::BF16Products::kConverted);
}

}  // namespace
}  // namespace lockstep::cpu
