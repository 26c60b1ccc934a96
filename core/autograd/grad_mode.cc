#include "core/autograd/grad_mode.h"

namespace lockstep {
namespace {

thread_local bool grad_enabled = true;

}  // namespace

bool GradEnabled() { return grad_enabled; }
GradMode::GradMode(bool enabled) : previous_(grad_enabled) { grad_enabled = enabled; }
GradMode::~GradMode() { grad_enabled = previous_; }

}  // namespace lockstep
