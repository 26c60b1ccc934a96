// A stand-in for NVTX: nothing is recorded, but a range that is popped without having been pushed
// is reported, and so are ranges that are still open when their thread ends.
#ifndef CUDASIM_NVTOOLSEXT_H_
#define CUDASIM_NVTOOLSEXT_H_

#include <cstdint>

#define NVTX_VERSION 3
#define NVTX_EVENT_ATTRIB_STRUCT_SIZE (static_cast<uint16_t>(sizeof(nvtxEventAttributes_t)))

typedef enum nvtxColorType_t { NVTX_COLOR_UNKNOWN = 0, NVTX_COLOR_ARGB = 1 } nvtxColorType_t;
typedef enum nvtxMessageType_t {
  NVTX_MESSAGE_UNKNOWN = 0,
  NVTX_MESSAGE_TYPE_ASCII = 1,
} nvtxMessageType_t;
typedef union nvtxMessageValue_t {
  const char* ascii;
  const wchar_t* unicode;
} nvtxMessageValue_t;
typedef struct nvtxEventAttributes_v2 {
  uint16_t version;
  uint16_t size;
  uint32_t category;
  int32_t colorType;
  uint32_t color;
  int32_t payloadType;
  int32_t reserved0;
  union {
    uint64_t ullValue;
    int64_t llValue;
    double dValue;
    uint32_t uiValue;
    int32_t iValue;
    float fValue;
  } payload;
  int32_t messageType;
  nvtxMessageValue_t message;
} nvtxEventAttributes_t;
typedef uint64_t nvtxRangeId_t;
struct nvtxDomainRegistration_st;
typedef struct nvtxDomainRegistration_st* nvtxDomainHandle_t;

extern "C" {

// Ranges of the calling thread. Push: the level of the new range, from 0. Pop: the level of the
// range that ends. Negative: an error.
int nvtxRangePushA(const char* message);
int nvtxRangePushEx(const nvtxEventAttributes_t* eventAttrib);
int nvtxRangePop();
void nvtxMarkA(const char* message);
void nvtxMarkEx(const nvtxEventAttributes_t* eventAttrib);
nvtxRangeId_t nvtxRangeStartA(const char* message);
nvtxRangeId_t nvtxRangeStartEx(const nvtxEventAttributes_t* eventAttrib);
void nvtxRangeEnd(nvtxRangeId_t id);
nvtxDomainHandle_t nvtxDomainCreateA(const char* name);
void nvtxDomainDestroy(nvtxDomainHandle_t domain);
int nvtxDomainRangePushEx(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* eventAttrib);
int nvtxDomainRangePop(nvtxDomainHandle_t domain);
void nvtxNameOsThreadA(uint32_t threadId, const char* name);

}  // extern "C"

#define nvtxRangePush nvtxRangePushA
#define nvtxMark nvtxMarkA
#define nvtxRangeStart nvtxRangeStartA
#define nvtxDomainCreate nvtxDomainCreateA
#define nvtxNameOsThread nvtxNameOsThreadA

#endif  // CUDASIM_NVTOOLSEXT_H_
