// Whether operations record what backward needs.
#pragma once

namespace lockstep {

bool GradEnabled();

// Within its scope, operations of this thread record nothing (or record again).
class GradMode {
 public:
  explicit GradMode(bool enabled);
  ~GradMode();
  GradMode(const GradMode&) = delete;
  GradMode& operator=(const GradMode&) = delete;

 private:
  bool previous_;
};
struct NoGrad : GradMode {
  NoGrad() : GradMode(false) {}
};

}  // namespace lockstep
