// SPDX-License-Identifier: Apache-2.0
#include "pair/host_dependent.hpp"

#include <algorithm>
#include <array>

#include "pair/all_variants.hpp"

namespace aisp::pair {
namespace {

bool of_memory_shared_with_the_host(cudaDeviceAttr attribute) {
  constexpr std::array shared{cudaDevAttrManagedMemory,
                              cudaDevAttrConcurrentManagedAccess,
                              cudaDevAttrDirectManagedMemAccessFromHost,
                              cudaDevAttrPageableMemoryAccess,
                              cudaDevAttrPageableMemoryAccessUsesHostPageTables,
                              cudaDevAttrHostRegisterSupported,
                              cudaDevAttrHostRegisterReadOnlySupported,
                              cudaDevAttrCanMapHostMemory,
                              cudaDevAttrCanUseHostPointerForRegisteredMem,
                              cudaDevAttrHostNativeAtomicSupported};
  return std::ranges::find(shared, attribute) != shared.end();
}

bool of_the_host(const Needs& needs) {
  return needs.gpus > 1 || needs.ranks.most > 1 || needs.peer_access || needs.cpus > 0 ||
         std::ranges::find(needs.libraries, Library::cufile) != std::end(needs.libraries) ||
         std::ranges::any_of(needs.attributes, of_memory_shared_with_the_host);
}

}  // namespace

bool host_dependent(const Pair& pair) {
  if (pair.device == Device::host || pair.start == Start::immediate || of_the_host(pair.needs)) return true;
  if (pair.bound == Bound::latency || pair.bound == Bound::transfer || pair.bound == Bound::host) return true;
  return std::ranges::any_of(all_variants(pair),
                             [](const Variant* variant) { return variant->host_callbacks || of_the_host(variant->needs); });
}

}  // namespace aisp::pair
