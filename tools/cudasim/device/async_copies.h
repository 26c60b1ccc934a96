// cp.async: copies that a block's threads have issued but not waited for.
#ifndef CUDASIM_DEVICE_ASYNC_COPIES_H_
#define CUDASIM_DEVICE_ASYNC_COPIES_H_

#include <cstdint>
#include <vector>

namespace cudasim {

// A copy is made when its thread waits for it, as late as a GPU might. Until then the target holds
// NaN.
class AsyncCopies {
 public:
  AsyncCopies();

  void BeginBlock();
  // bytes: 4, 8 or 16. Reads source_bytes from the source and fills up with zeros.
  void Issue(int thread, void* shared, const void* global, int bytes, int source_bytes);
  void Commit(int thread);
  // Makes the copies of all groups except the newest `pending`, or (-1) all copies.
  void Wait(int thread, int pending);

 private:
  struct Copy {
    void* shared;
    const void* global;
    int bytes;
    int source_bytes;
    int64_t group;
  };
  struct Queue {
    std::vector<Copy> copies;
    int64_t group = 0;  // the open one
  };

  std::vector<Queue> queues_;  // by thread
  bool used_ = false;
};

}  // namespace cudasim

#endif  // CUDASIM_DEVICE_ASYNC_COPIES_H_
