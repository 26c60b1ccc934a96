// NVTX: checks that ranges are well formed.
#include <atomic>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "nvtx3/nvToolsExt.h"
#include "state.h"

struct nvtxDomainRegistration_st {};

namespace cudasim::runtime {
namespace {

std::string NameOf(const nvtxEventAttributes_t* attributes) {
  const bool named = attributes != nullptr && attributes->messageType == NVTX_MESSAGE_TYPE_ASCII &&
                     attributes->message.ascii != nullptr;
  return named ? attributes->message.ascii : "(unnamed)";
}

// The open ranges of a thread, per domain.
struct Ranges {
  ~Ranges() {
    for (const auto& [domain, names] : open) {
      if (names.empty()) continue;
      Report(Bug::kOther, "NVTX range \"" + names.back() + "\" is still open at the end of its " +
                              "thread: nvtxRangePop is missing");
    }
  }
  std::map<nvtxDomainHandle_t, std::vector<std::string>> open;
};

std::vector<std::string>& Open(nvtxDomainHandle_t domain) {
  thread_local Ranges ranges;
  return ranges.open[domain];
}

int Push(nvtxDomainHandle_t domain, std::string name) {
  auto& open = Open(domain);
  open.push_back(std::move(name));
  return static_cast<int>(open.size()) - 1;
}

int Pop(nvtxDomainHandle_t domain) {
  auto& open = Open(domain);
  if (open.empty()) {
    Report(Bug::kOther, "nvtxRangePop without a range that was pushed on this thread");
    return -1;
  }
  open.pop_back();
  return static_cast<int>(open.size());
}

// Numbered ranges, which any thread may end.
struct Started {
  std::mutex mutex;
  nvtxRangeId_t next = 1;
  std::set<nvtxRangeId_t> open;
};

Started& GetStarted() {
  static auto* const started = new Started;
  return *started;
}

nvtxRangeId_t Start() {
  Started& started = GetStarted();
  const std::lock_guard<std::mutex> guard(started.mutex);
  started.open.insert(started.next);
  return started.next++;
}

void End(nvtxRangeId_t id) {
  Started& started = GetStarted();
  {
    const std::lock_guard<std::mutex> guard(started.mutex);
    if (started.open.erase(id) == 1) return;
  }
  Report(Bug::kOther, "nvtxRangeEnd of range " + std::to_string(id) + ", which is not open");
}

}  // namespace
}  // namespace cudasim::runtime

int nvtxRangePushA(const char* message) {
  return cudasim::runtime::Push(nullptr, message == nullptr ? "(unnamed)" : message);
}
int nvtxRangePushEx(const nvtxEventAttributes_t* eventAttrib) {
  return nvtxDomainRangePushEx(nullptr, eventAttrib);
}
int nvtxRangePop() { return cudasim::runtime::Pop(nullptr); }
void nvtxMarkA(const char*) {}
void nvtxMarkEx(const nvtxEventAttributes_t*) {}
nvtxRangeId_t nvtxRangeStartA(const char*) { return cudasim::runtime::Start(); }
nvtxRangeId_t nvtxRangeStartEx(const nvtxEventAttributes_t*) { return cudasim::runtime::Start(); }
void nvtxRangeEnd(nvtxRangeId_t id) { cudasim::runtime::End(id); }
nvtxDomainHandle_t nvtxDomainCreateA(const char*) { return new nvtxDomainRegistration_st; }
void nvtxDomainDestroy(nvtxDomainHandle_t domain) { delete domain; }
int nvtxDomainRangePushEx(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* eventAttrib) {
  return cudasim::runtime::Push(domain, cudasim::runtime::NameOf(eventAttrib));
}
int nvtxDomainRangePop(nvtxDomainHandle_t domain) { return cudasim::runtime::Pop(domain); }
void nvtxNameOsThreadA(uint32_t, const char*) {}
