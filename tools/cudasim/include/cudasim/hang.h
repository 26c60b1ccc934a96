// Calls that do not return, as when a driver hangs.
#ifndef CUDASIM_HANG_H_
#define CUDASIM_HANG_H_

namespace cudasim::runtime {

// During its lifetime, calls of a function do not return: "cudaEventQuery" or "ncclCommAbort"; or
// the threads that enqueue for nonblocking communicators stand still: "ncclGroupEnd". One at a
// time. Only for programs that contain the simulator; others link, too.
class Hang {
 public:
  [[gnu::weak]] explicit Hang(const char* function);
  [[gnu::weak]] ~Hang();  // they go on
  Hang(const Hang&) = delete;
  Hang& operator=(const Hang&) = delete;

  // That have not returned.
  [[gnu::weak]] int calls() const;
};

// For the functions.
void MayHang(const char* function);

}  // namespace cudasim::runtime

#endif  // CUDASIM_HANG_H_
