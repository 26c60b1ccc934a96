// Access to device memory, for threads that hold a DeviceAccess.
#ifndef CUDASIM_ACCESS_H_
#define CUDASIM_ACCESS_H_

namespace cudasim {

// During its lifetime the calling OS thread may read and write the memory of `device` and of its
// peers (kAllDevices: of all devices). Other threads fault, and the fault is reported as a host
// access to device memory. Nests; costs tens of nanoseconds.
class DeviceAccess {
 public:
  static constexpr int kAllDevices = -1;

  explicit DeviceAccess(int device);
  ~DeviceAccess();
  DeviceAccess(const DeviceAccess&) = delete;
  DeviceAccess& operator=(const DeviceAccess&) = delete;

 private:
  unsigned saved_rights_;
  unsigned devices_ = ~0u;  // one bit per device
};

}  // namespace cudasim

#endif  // CUDASIM_ACCESS_H_
