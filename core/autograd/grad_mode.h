// Whether operations record what backward needs.
#pragma once

namespace lockstep {

bool GradEnabled();

// Turns recording off (or on again) for this thread's operations within its scope.
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
