// Errors: their names and texts, each thread's last one, and bugs that detectors find.
#include <cstdlib>

#include "state.h"

namespace cudasim::runtime {

cudaError_t Return(cudaError_t error) {
  if (error != cudaSuccess) GetThread().last_error = error;
  return error;
}

void ReportBug(int device, Bug bug, const std::string& text) {
  Report(bug, text);
  State& state = GetState();
  const Lock lock(state.mutex);
  if (state.devices.empty()) return;
  cudaError_t& sticky = (device < 0 ? CurrentDevice(lock) : state.devices[device]).sticky;
  if (sticky == cudaSuccess) sticky = cudaErrorLaunchFailure;
}

namespace {

struct ErrorText {
  cudaError_t error;
  const char* name;
  const char* text;
};

#define CUDASIM_ERROR(name, text) \
  { name, #name, text }

constexpr ErrorText kErrors[] = {
    CUDASIM_ERROR(cudaSuccess, "no error"),
    CUDASIM_ERROR(cudaErrorInvalidValue, "invalid argument"),
    CUDASIM_ERROR(cudaErrorMemoryAllocation, "out of memory"),
    CUDASIM_ERROR(cudaErrorInitializationError, "initialization error"),
    CUDASIM_ERROR(cudaErrorCudartUnloading, "driver shutting down"),
    CUDASIM_ERROR(cudaErrorInvalidConfiguration, "invalid configuration argument"),
    CUDASIM_ERROR(cudaErrorInvalidPitchValue, "invalid pitch argument"),
    CUDASIM_ERROR(cudaErrorInvalidSymbol, "invalid device symbol"),
    CUDASIM_ERROR(cudaErrorInvalidHostPointer, "invalid host pointer"),
    CUDASIM_ERROR(cudaErrorInvalidDevicePointer, "invalid device pointer"),
    CUDASIM_ERROR(cudaErrorInvalidMemcpyDirection, "invalid copy direction for memcpy"),
    CUDASIM_ERROR(cudaErrorInsufficientDriver,
                  "CUDA driver version is insufficient for CUDA runtime version"),
    CUDASIM_ERROR(cudaErrorStubLibrary, "CUDA driver is a stub library"),
    CUDASIM_ERROR(cudaErrorDevicesUnavailable, "CUDA-capable device(s) is/are busy or unavailable"),
    CUDASIM_ERROR(cudaErrorInvalidDeviceFunction, "invalid device function"),
    CUDASIM_ERROR(cudaErrorNoDevice, "no CUDA-capable device is detected"),
    CUDASIM_ERROR(cudaErrorInvalidDevice, "invalid device ordinal"),
    CUDASIM_ERROR(cudaErrorDeviceUninitialized, "invalid device context"),
    CUDASIM_ERROR(cudaErrorECCUncorrectable, "uncorrectable ECC error encountered"),
    CUDASIM_ERROR(cudaErrorUnsupportedLimit, "limit is not supported on this architecture"),
    CUDASIM_ERROR(cudaErrorPeerAccessUnsupported,
                  "peer access is not supported between these two devices"),
    CUDASIM_ERROR(cudaErrorOperatingSystem, "OS call failed or operation not supported on this OS"),
    CUDASIM_ERROR(cudaErrorInvalidResourceHandle, "invalid resource handle"),
    CUDASIM_ERROR(cudaErrorIllegalState, "the operation cannot be performed in the present state"),
    CUDASIM_ERROR(cudaErrorNotReady, "device not ready"),
    CUDASIM_ERROR(cudaErrorIllegalAddress, "an illegal memory access was encountered"),
    CUDASIM_ERROR(cudaErrorLaunchOutOfResources, "too many resources requested for launch"),
    CUDASIM_ERROR(cudaErrorLaunchTimeout, "the launch timed out and was terminated"),
    CUDASIM_ERROR(cudaErrorPeerAccessAlreadyEnabled, "peer access is already enabled"),
    CUDASIM_ERROR(cudaErrorPeerAccessNotEnabled, "peer access has not been enabled"),
    CUDASIM_ERROR(cudaErrorContextIsDestroyed, "context is destroyed"),
    CUDASIM_ERROR(cudaErrorAssert, "device-side assert triggered"),
    CUDASIM_ERROR(cudaErrorHostMemoryAlreadyRegistered,
                  "part or all of the requested memory range is already mapped"),
    CUDASIM_ERROR(cudaErrorHostMemoryNotRegistered,
                  "pointer does not correspond to a registered "
                  "memory region"),
    CUDASIM_ERROR(cudaErrorIllegalInstruction, "an illegal instruction was encountered"),
    CUDASIM_ERROR(cudaErrorMisalignedAddress, "misaligned address"),
    CUDASIM_ERROR(cudaErrorLaunchFailure, "unspecified launch failure"),
    CUDASIM_ERROR(cudaErrorCooperativeLaunchTooLarge, "too many blocks in cooperative launch"),
    CUDASIM_ERROR(cudaErrorNotPermitted, "operation not permitted"),
    CUDASIM_ERROR(cudaErrorNotSupported, "operation not supported"),
    CUDASIM_ERROR(cudaErrorSystemNotReady, "system not yet initialized"),
    CUDASIM_ERROR(cudaErrorSystemDriverMismatch,
                  "system has unsupported display driver / cuda driver combination"),
    CUDASIM_ERROR(cudaErrorCompatNotSupportedOnDevice,
                  "forward compatibility was attempted on non supported HW"),
    CUDASIM_ERROR(cudaErrorStreamCaptureUnsupported,
                  "operation not permitted when stream is capturing"),
    CUDASIM_ERROR(cudaErrorStreamCaptureInvalidated,
                  "operation failed due to a previous error during capture"),
    CUDASIM_ERROR(cudaErrorStreamCaptureMerge,
                  "operation would result in a merge of separate capture sequences"),
    CUDASIM_ERROR(cudaErrorStreamCaptureUnmatched,
                  "capture was not ended in the same stream as "
                  "it began"),
    CUDASIM_ERROR(cudaErrorStreamCaptureUnjoined, "capturing stream has unjoined work"),
    CUDASIM_ERROR(cudaErrorStreamCaptureIsolation,
                  "dependency created on uncaptured work in another stream"),
    CUDASIM_ERROR(cudaErrorStreamCaptureImplicit,
                  "operation would make the legacy stream depend on a capturing blocking stream"),
    CUDASIM_ERROR(cudaErrorCapturedEvent,
                  "operation not permitted on an event last recorded in a capturing stream"),
    CUDASIM_ERROR(cudaErrorStreamCaptureWrongThread,
                  "attempt to terminate a thread-local capture sequence from another thread"),
    CUDASIM_ERROR(cudaErrorTimeout, "wait operation timed out"),
    CUDASIM_ERROR(cudaErrorGraphExecUpdateFailure,
                  "the graph update was not performed because it included changes which violated "
                  "constraints specific to instantiated graph update"),
    CUDASIM_ERROR(cudaErrorUnknown, "unknown error"),
};

#undef CUDASIM_ERROR

const ErrorText* Find(cudaError_t error) {
  for (const ErrorText& entry : kErrors) {
    if (entry.error == error) return &entry;
  }
  return nullptr;
}

}  // namespace
}  // namespace cudasim::runtime

using namespace cudasim::runtime;  // NOLINT: this file implements the global functions.

cudaError_t cudaPeekAtLastError() {
  const Lock lock(GetState().mutex);
  const cudaError_t sticky = GetState().devices.empty() ? cudaSuccess : CurrentDevice(lock).sticky;
  return sticky != cudaSuccess ? sticky : GetThread().last_error;
}

cudaError_t cudaGetLastError() {
  const cudaError_t error = cudaPeekAtLastError();
  GetThread().last_error = cudaSuccess;
  return error;
}

const char* cudaGetErrorName(cudaError_t error) {
  const ErrorText* const entry = Find(error);
  return entry == nullptr ? "unrecognized error code" : entry->name;
}

const char* cudaGetErrorString(cudaError_t error) {
  const ErrorText* const entry = Find(error);
  return entry == nullptr ? "unrecognized error code" : entry->text;
}
