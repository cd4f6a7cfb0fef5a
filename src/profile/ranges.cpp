// SPDX-License-Identifier: Apache-2.0
#include "profile/ranges.hpp"

#include <nvtx3/nvToolsExt.h>

#include <utility>

namespace aisp::profile {
namespace {

nvtxDomainHandle_t domain() {
  static const nvtxDomainHandle_t handle = nvtxDomainCreateA("aisp");
  return handle;
}

nvtxEventAttributes_t attributes(const char* name) {
  nvtxEventAttributes_t result{};
  result.version = NVTX_VERSION;
  result.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  result.messageType = NVTX_MESSAGE_TYPE_ASCII;
  result.message.ascii = name;
  return result;
}

}  // namespace

void push_range(const char* name) {
  const nvtxEventAttributes_t event = attributes(name);
  nvtxDomainRangePushEx(domain(), &event);
}

void pop_range() { nvtxDomainRangePop(domain()); }

void mark(const char* name) {
  const nvtxEventAttributes_t event = attributes(name);
  nvtxDomainMarkEx(domain(), &event);
}

void RangeLog::push(const char* name) {
  open_.push_back(ranges_.size());
  ranges_.push_back({name, now_ns_(), 0, static_cast<int>(open_.size()) - 1});
}

void RangeLog::pop() {
  if (open_.empty()) return;
  ranges_[open_.back()].end_ns = now_ns_();
  open_.pop_back();
}

void RangeLog::mark(const char* name) {
  const std::uint64_t now_ns = now_ns_();
  ranges_.push_back({name, now_ns, now_ns, static_cast<int>(open_.size())});
}

std::vector<NamedRange> RangeLog::take() {
  while (!open_.empty()) pop();
  return std::exchange(ranges_, {});
}

}  // namespace aisp::profile
