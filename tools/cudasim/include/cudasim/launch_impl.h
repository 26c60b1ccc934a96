// The template of cudasim/launch.h.
#ifndef CUDASIM_LAUNCH_IMPL_H_
#define CUDASIM_LAUNCH_IMPL_H_

#include <tuple>

#include "cudasim/launch.h"

namespace cudasim {

template <typename... Parameters, typename... Arguments>
Launch MakeLaunch(const cudaLaunchConfig_t& config, void (*kernel)(Parameters...),
                  Arguments&&... arguments) {
  static_assert(sizeof...(Parameters) == sizeof...(Arguments),
                "pass one argument for each parameter of the kernel");
  std::tuple<std::decay_t<Parameters>...> values(std::forward<Arguments>(arguments)...);
  Launch launch;
  launch.function = reinterpret_cast<const void*>(kernel);
  launch.grid = config.gridDim;
  launch.block = config.blockDim;
  launch.shared_bytes = config.dynamicSmemBytes;
  for (unsigned int i = 0; i < config.numAttrs; ++i) {
    if (config.attrs[i].id == cudaLaunchAttributeCooperative) {
      launch.cooperative = config.attrs[i].val.cooperative != 0;
    }
  }
  auto note_pointer = [&launch](const auto& value) {
    using T = std::decay_t<decltype(value)>;
    if constexpr (std::is_pointer_v<T> && !std::is_function_v<std::remove_pointer_t<T>>) {
      launch.pointers.push_back({const_cast<const void*>(static_cast<const volatile void*>(value)),
                                 std::is_const_v<std::remove_pointer_t<T>>});
    }
  };
  std::apply([&](const auto&... value) { (note_pointer(value), ...); }, values);
  launch.body = [kernel, values = std::move(values)] { std::apply(kernel, values); };
  return launch;
}

}  // namespace cudasim

#endif  // CUDASIM_LAUNCH_IMPL_H_
