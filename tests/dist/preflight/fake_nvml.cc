// NVML of a machine whose only GPU is too hot. Signatures are those of nvml.h.
#include <cstring>

extern "C" {

int nvmlInit_v2() { return 0; }

int nvmlDeviceGetHandleByPciBusId_v2(const char* bus, void** device) {
  static int gpu;
  if (std::strcmp(bus, "0000:1B:00.0") != 0) return 6;  // NVML_ERROR_NOT_FOUND
  *device = &gpu;
  return 0;
}

int nvmlDeviceGetClockInfo(void*, int kind, unsigned* mhz) {
  *mhz = kind == 1 ? 345 : 0;
  return 0;
}

int nvmlDeviceGetMaxClockInfo(void*, int kind, unsigned* mhz) {
  *mhz = kind == 1 ? 1980 : 0;
  return 0;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(void*, unsigned long long* reasons) {
  *reasons = 0x1 | 0x4 | 0x40;  // idle, its limit of power, heat
  return 0;
}

}  // extern "C"
