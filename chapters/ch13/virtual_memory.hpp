// SPDX-License-Identifier: Apache-2.0
// Device addresses reserved now, backed by memory page by page (CUDA's virtual memory management, through the driver library).
#pragma once
#include <cuda.h>
#include <aisp/check.hpp>

#include <cstddef>
#include <string>
#include <vector>

namespace aisp::ch13 {

// A driver function by name, without linking the driver library.
template <class F>
F* driver_function(const char* name) {
  void* address = nullptr;
  cudaDriverEntryPointQueryResult found{};
  check(cudaGetDriverEntryPointByVersion(name, &address, 12000, cudaEnableDefault, &found));
  if (found != cudaDriverEntryPointSuccess) throw Unsupported{"the driver has no " + std::string{name}};
  return reinterpret_cast<F*>(address);
}

inline void check_driver(CUresult status, const char* call) {
  if (status != CUDA_SUCCESS) throw std::runtime_error{std::string{call} + " failed with driver error " + std::to_string(status)};
}

// Physical pages and the ranges they are mapped into.
class PagedMemory {
 public:
  explicit PagedMemory(int gpu) {
    property_.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    property_.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    property_.location.id = gpu;
    check_driver(driver_function<decltype(cuMemGetAllocationGranularity)>("cuMemGetAllocationGranularity")(
                     &page_bytes_, &property_, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
                 "cuMemGetAllocationGranularity");
  }
  ~PagedMemory() {
    for (const Mapping& mapping : mappings_) unmap_(mapping.address, page_bytes_);
    for (const Mapping& range : ranges_) address_free_(range.address, range.bytes);
    for (const CUmemGenericAllocationHandle page : pages_) release_(page);
  }
  PagedMemory(const PagedMemory&) = delete;
  PagedMemory& operator=(const PagedMemory&) = delete;

  std::size_t page_bytes() const { return page_bytes_; }
  std::size_t pages_for(std::size_t bytes) const { return (bytes + page_bytes_ - 1) / page_bytes_; }

  CUdeviceptr reserve(std::size_t bytes) {
    Mapping range{0, pages_for(bytes) * page_bytes_};
    check_driver(reserve_(&range.address, range.bytes, 0, 0, 0), "cuMemAddressReserve");
    ranges_.push_back(range);
    return range.address;
  }
  void add_page() {
    CUmemGenericAllocationHandle page{};
    check_driver(create_(&page, page_bytes_, &property_, 0), "cuMemCreate");
    pages_.push_back(page);
  }
  // Backs one page's worth of addresses with the next unused physical page.
  void map_page(CUdeviceptr address) {
    const CUmemAccessDesc access{property_.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    check_driver(map_(address, page_bytes_, 0, pages_.at(mappings_.size()), 0), "cuMemMap");
    mappings_.push_back({address, page_bytes_});
    check_driver(set_access_(address, page_bytes_, &access, 1), "cuMemSetAccess");
  }
  std::size_t mapped_pages() const { return mappings_.size(); }
  void unmap_down_to(std::size_t pages) {
    for (; mappings_.size() > pages; mappings_.pop_back())
      check_driver(unmap_(mappings_.back().address, page_bytes_), "cuMemUnmap");
  }

 private:
  struct Mapping {
    CUdeviceptr address;
    std::size_t bytes;
  };
  CUmemAllocationProp property_{};
  std::size_t page_bytes_ = 0;
  std::vector<CUmemGenericAllocationHandle> pages_;
  std::vector<Mapping> mappings_, ranges_;
  decltype(&cuMemAddressReserve) reserve_ = driver_function<decltype(cuMemAddressReserve)>("cuMemAddressReserve");
  decltype(&cuMemAddressFree) address_free_ = driver_function<decltype(cuMemAddressFree)>("cuMemAddressFree");
  decltype(&cuMemCreate) create_ = driver_function<decltype(cuMemCreate)>("cuMemCreate");
  decltype(&cuMemRelease) release_ = driver_function<decltype(cuMemRelease)>("cuMemRelease");
  decltype(&cuMemMap) map_ = driver_function<decltype(cuMemMap)>("cuMemMap");
  decltype(&cuMemUnmap) unmap_ = driver_function<decltype(cuMemUnmap)>("cuMemUnmap");
  decltype(&cuMemSetAccess) set_access_ = driver_function<decltype(cuMemSetAccess)>("cuMemSetAccess");
};

}  // namespace aisp::ch13
