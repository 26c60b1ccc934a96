#include "cudasim/hang.h"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <string_view>

namespace cudasim::runtime {
namespace {

struct Hanging {
  std::mutex mutex;
  std::condition_variable changed;
  std::string_view function;
  int calls = 0;
};

Hanging& GetHanging() {
  static auto* const hanging = new Hanging;  // calls may outlive main
  return *hanging;
}

std::atomic<bool> something_hangs{false};

}  // namespace

Hang::Hang(const char* function) {
  const std::lock_guard<std::mutex> guard(GetHanging().mutex);
  GetHanging().function = function;
  something_hangs = true;
}

Hang::~Hang() {
  const std::lock_guard<std::mutex> guard(GetHanging().mutex);
  GetHanging().function = {};
  something_hangs = false;
  GetHanging().changed.notify_all();
}

int Hang::calls() const {
  const std::lock_guard<std::mutex> guard(GetHanging().mutex);
  return GetHanging().calls;
}

void MayHang(const char* function) {
  if (!something_hangs) return;
  Hanging& hanging = GetHanging();
  std::unique_lock<std::mutex> lock(hanging.mutex);
  if (hanging.function != function) return;
  ++hanging.calls;
  hanging.changed.wait(lock, [&] { return hanging.function != function; });
  --hanging.calls;
}

}  // namespace cudasim::runtime
