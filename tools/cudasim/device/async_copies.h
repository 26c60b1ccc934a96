// cp.async: the copies that the threads of a block have issued and not waited for.
#ifndef CUDASIM_DEVICE_ASYNC_COPIES_H_
#define CUDASIM_DEVICE_ASYNC_COPIES_H_

#include <cstdint>
#include <vector>

namespace cudasim {

// A copy is carried out when its thread waits for it: as late as a GPU might. Until then the target
// holds NaN.
class AsyncCopies {
 public:
  AsyncCopies();

  void BeginBlock();
  // bytes: 4, 8 or 16; of the source, source_bytes are read and zeros follow.
  void Issue(int thread, void* shared, const void* global, int bytes, int source_bytes);
  void Commit(int thread);
  // Carries out all groups but the newest `pending`, or (-1) everything.
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
    int64_t group = 0;  // the one that is open
  };

  std::vector<Queue> queues_;  // by thread
  bool used_ = false;
};

}  // namespace cudasim

#endif  // CUDASIM_DEVICE_ASYNC_COPIES_H_
