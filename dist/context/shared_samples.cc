#include "dist/context/shared_samples.h"

namespace lockstep::dist {
namespace {

// To the reducer, a part of a micro-batch is one by itself.
ReducerOptions OfParts(const ProcessGroup* group, int parts, ReducerOptions options) {
  const int ranks = SizeOf(group);
  LS_CHECK(parts >= 1 && ranks % parts == 0, "SharedSamples: ", parts,
           " ranks that share samples do not divide the ", ranks, " ranks");
  LS_CHECK(
      options.sum == GradientSum::kFast,
      "SharedSamples adds in the library's order: for the fixed order let the ranks that share "
      "samples add up their parts themselves (ContextRanks), with DataParallel of the others");
  if (options.micro_batches == 0) options.micro_batches = ranks / parts;
  options.micro_batches *= parts;
  return options;
}

}  // namespace

SharedSamples::SharedSamples(ProcessGroup* group, int parts, Module& module, ReducerOptions options,
                             std::shared_ptr<ProcessGroup> control)
    : DataParallel(group, module, OfParts(group, parts, std::move(options)), std::move(control)),
      parts_(parts) {
  for (const int64_t part : DataParallel::micro_order()) order_.push_back(part / parts);
}

}  // namespace lockstep::dist
