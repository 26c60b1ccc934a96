// Access to device memory, for threads that hold a DeviceAccess.
#ifndef CUDASIM_ACCESS_H_
#define CUDASIM_ACCESS_H_

#include <cstdint>
#include <string>

namespace cudasim {

// The addresses from `begin` to before `end`.
struct Extent {
  uintptr_t begin = 0;
  uintptr_t end = 0;
  bool Contains(uintptr_t address, size_t bytes) const {
    return address >= begin && address < end && bytes <= end - address;
  }
};

// What may be accessed around an address: the block that contains it or, for memory that the
// runtime does not know, its page. Empty for an address beside a block, up to the ends of its guard
// pages. Takes the runtime's lock.
Extent AccessibleAt(uintptr_t address);
// "0 bytes after device memory 0x... of 52 bytes on device 0, allocated at ...", for an address in
// or beside a block; otherwise empty. Takes the runtime's lock.
std::string DescribeAddress(uintptr_t address);

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
