// SPDX-License-Identifier: Apache-2.0
// Device addresses reserved now, backed by memory page by page (CUDA's virtual memory management, through the driver library).
#pragma once
#include <cuda.h>
#include <aisp/check.hpp>
#include <aisp/driver_function.hpp>

#include <cstddef>
#include <stdexcept>
#include <string>
#include <vector>

namespace aisp::ch13 {

inline constexpr unsigned since = 12000;  // CUDA's version, of all that is called here

inline void check_driver(CUresult status, const char* call) {
  if (status != CUDA_SUCCESS) throw std::runtime_error{std::string{call} + " failed with driver error " + std::to_string(status)};
}

// Physical pages, made when they are mapped, and the ranges they are mapped into. Throws Unsupported where the GPU cannot.
class PagedMemory {
 public:
  // Pages have the least size that the GPU maps, or the smallest multiple of it that holds `least_page_bytes`.
  explicit PagedMemory(int gpu, std::size_t least_page_bytes = 1) {
    int supported = 0;
    check_driver(required_driver_function<decltype(cuDeviceGetAttribute)>("cuDeviceGetAttribute", since)(
                     &supported, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, gpu),
                 "cuDeviceGetAttribute");
    if (supported == 0) throw Unsupported{"this GPU has no virtual memory management"};
    property_.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    property_.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    property_.location.id = gpu;
    check_driver(required_driver_function<decltype(cuMemGetAllocationGranularity)>("cuMemGetAllocationGranularity", since)(
                     &page_bytes_, &property_, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
                 "cuMemGetAllocationGranularity");
    page_bytes_ = pages_for(least_page_bytes) * page_bytes_;
  }
  ~PagedMemory() {
    for (const Page& page : pages_) {
      unmap_(page.address, page_bytes_);
      release_(page.memory);
    }
    for (const Range& range : ranges_) address_free_(range.address, range.bytes);
  }
  PagedMemory(const PagedMemory&) = delete;
  PagedMemory& operator=(const PagedMemory&) = delete;

  std::size_t page_bytes() const { return page_bytes_; }
  std::size_t pages_for(std::size_t bytes) const { return (bytes + page_bytes_ - 1) / page_bytes_; }

  CUdeviceptr reserve(std::size_t bytes) {
    Range range{0, pages_for(bytes) * page_bytes_};
    check_driver(reserve_(&range.address, range.bytes, 0, 0, 0), "cuMemAddressReserve");
    ranges_.push_back(range);
    return range.address;
  }
  // Backs one page's worth of addresses with memory of their own.
  void map_page(CUdeviceptr address) {
    const CUmemAccessDesc access{property_.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    Page page{address, 0};
    check_driver(create_(&page.memory, page_bytes_, &property_, 0), "cuMemCreate");
    if (const CUresult status = map_(address, page_bytes_, 0, page.memory, 0); status != CUDA_SUCCESS) {
      release_(page.memory);
      check_driver(status, "cuMemMap");
    }
    pages_.push_back(page);
    check_driver(set_access_(address, page_bytes_, &access, 1), "cuMemSetAccess");
  }
  std::size_t mapped_pages() const { return pages_.size(); }
  // Takes the youngest mappings back, and their memory with them.
  void release_down_to(std::size_t pages) {
    for (; pages_.size() > pages; pages_.pop_back()) {
      check_driver(unmap_(pages_.back().address, page_bytes_), "cuMemUnmap");
      check_driver(release_(pages_.back().memory), "cuMemRelease");
    }
  }

 private:
  struct Page {
    CUdeviceptr address;
    CUmemGenericAllocationHandle memory;
  };
  struct Range {
    CUdeviceptr address;
    std::size_t bytes;
  };
  CUmemAllocationProp property_{};
  std::size_t page_bytes_ = 0;
  std::vector<Page> pages_;
  std::vector<Range> ranges_;
  decltype(&cuMemAddressReserve) reserve_ = required_driver_function<decltype(cuMemAddressReserve)>("cuMemAddressReserve", since);
  decltype(&cuMemAddressFree) address_free_ = required_driver_function<decltype(cuMemAddressFree)>("cuMemAddressFree", since);
  decltype(&cuMemCreate) create_ = required_driver_function<decltype(cuMemCreate)>("cuMemCreate", since);
  decltype(&cuMemRelease) release_ = required_driver_function<decltype(cuMemRelease)>("cuMemRelease", since);
  decltype(&cuMemMap) map_ = required_driver_function<decltype(cuMemMap)>("cuMemMap", since);
  decltype(&cuMemUnmap) unmap_ = required_driver_function<decltype(cuMemUnmap)>("cuMemUnmap", since);
  decltype(&cuMemSetAccess) set_access_ = required_driver_function<decltype(cuMemSetAccess)>("cuMemSetAccess", since);
};

}  // namespace aisp::ch13
