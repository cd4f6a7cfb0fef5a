// SPDX-License-Identifier: Apache-2.0
#include "profile/cupti.hpp"

#include <algorithm>

namespace aisp::profile {
namespace {

template <class Record>
Activity common(const Record& record, Activity::Kind kind) {
  Activity activity{.kind = kind, .start_ns = record.start, .end_ns = record.end};
  activity.device = static_cast<int>(record.deviceId);
  activity.stream = record.streamId;
  activity.correlation = record.correlationId;
  return activity;
}

std::string memory_word(std::uint8_t kind) {
  switch (kind) {
    case CUPTI_ACTIVITY_MEMORY_KIND_PAGEABLE: return "pageable host";
    case CUPTI_ACTIVITY_MEMORY_KIND_PINNED: return "pinned host";
    case CUPTI_ACTIVITY_MEMORY_KIND_DEVICE:
    case CUPTI_ACTIVITY_MEMORY_KIND_DEVICE_STATIC: return "device";
    case CUPTI_ACTIVITY_MEMORY_KIND_ARRAY: return "array";
    case CUPTI_ACTIVITY_MEMORY_KIND_MANAGED:
    case CUPTI_ACTIVITY_MEMORY_KIND_MANAGED_STATIC: return "managed";
    default: return "unknown memory";
  }
}

std::string direction(std::uint8_t source, std::uint8_t target) { return memory_word(source) + " to " + memory_word(target); }

bool is_over_link(std::uint8_t kind) {
  switch (kind) {
    case CUPTI_ACTIVITY_MEMCPY_KIND_HTOD:
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOH:
    case CUPTI_ACTIVITY_MEMCPY_KIND_HTOA:
    case CUPTI_ACTIVITY_MEMCPY_KIND_ATOH:
    case CUPTI_ACTIVITY_MEMCPY_KIND_PTOP: return true;
    default: return false;
  }
}

std::string wait_word(CUpti_ActivitySynchronizationType type) {
  switch (type) {
    case CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_EVENT_SYNCHRONIZE: return "event";
    case CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_WAIT_EVENT: return "stream wait event";
    case CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_SYNCHRONIZE: return "stream";
    case CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_CONTEXT_SYNCHRONIZE: return "device";
    default: return "unknown";
  }
}

// "cudaLaunchKernel" of "cudaLaunchKernel_v7000", "cuMemcpyHtoDAsync" of "cuMemcpyHtoDAsync_v2".
std::string call_name(CUpti_CallbackDomain domain, CUpti_CallbackId id) {
  const char* found = nullptr;
  if (cupti().callback_name(domain, id, &found) != CUPTI_SUCCESS || found == nullptr) return "unknown call";
  std::string name{found};
  const std::size_t version = name.rfind("_v");
  if (version != std::string::npos && name.find_first_not_of("0123456789", version + 2) == std::string::npos)
    name.resize(version);
  return name;
}

Activity kernel_of(const CUpti_ActivityKernel10& record) {
  Activity kernel = common(record, Activity::Kind::kernel);
  kernel.name = record.name != nullptr ? record.name : "";
  kernel.is_node = record.graphNodeId != 0;
  kernel.shape = {
      .grid = {record.gridX, record.gridY, record.gridZ},
      .block = {record.blockX, record.blockY, record.blockZ},
      .cluster = {static_cast<int>(record.clusterX), static_cast<int>(record.clusterY), static_cast<int>(record.clusterZ)},
      .registers = record.registersPerThread,
      .static_shared_bytes = static_cast<std::uint64_t>(std::max(record.staticSharedMemory, 0)),
      .dynamic_shared_bytes = static_cast<std::uint64_t>(std::max(record.dynamicSharedMemory, 0)),
      .local_bytes = record.localMemoryPerThread};
  return kernel;
}

template <class Record>
Activity copy_of(const Record& record) {
  Activity copy = common(record, Activity::Kind::memcpy);
  copy.bytes = record.bytes;
  copy.name = direction(record.srcKind, record.dstKind);
  copy.over_link = is_over_link(record.copyKind);
  return copy;
}

Activity call_of(const CUpti_ActivityAPI& record, CUpti_CallbackDomain domain) {
  Activity call{
      .kind = Activity::Kind::call, .start_ns = record.start, .end_ns = record.end, .name = call_name(domain, record.cbid)};
  call.correlation = record.correlationId;
  call.thread = record.threadId;
  return call;
}

Activity wait_of(const CUpti_ActivitySynchronization2& record) {
  Activity wait{.kind = Activity::Kind::wait, .start_ns = record.start, .end_ns = record.end, .name = wait_word(record.type)};
  wait.stream = record.streamId;
  wait.correlation = record.correlationId;
  return wait;
}

Activity memory_of(const CUpti_ActivityMemory4& record) {
  Activity memory{.kind = Activity::Kind::memory, .start_ns = record.timestamp, .end_ns = record.timestamp};
  memory.device = static_cast<int>(record.deviceId);
  memory.bytes = record.bytes;
  memory.freed = record.memoryOperationType == CUPTI_ACTIVITY_MEMORY_OPERATION_TYPE_RELEASE;
  return memory;
}

}  // namespace

const Cupti& cupti() {
  static const Cupti functions;
  return functions;
}

void keep(const CUpti_Activity* record, std::vector<Activity>& activities) {
  switch (record->kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
      const auto& kernel = *reinterpret_cast<const CUpti_ActivityKernel10*>(record);
      // Zero: in a branch of a conditional graph node that was not taken.
      if (kernel.start != 0) activities.push_back(kernel_of(kernel));
      break;
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY:
      activities.push_back(copy_of(*reinterpret_cast<const CUpti_ActivityMemcpy6*>(record)));
      break;
    case CUPTI_ACTIVITY_KIND_MEMCPY2:
      activities.push_back(copy_of(*reinterpret_cast<const CUpti_ActivityMemcpyPtoP4*>(record)));
      activities.back().name = "device to another device";
      activities.back().over_link = true;
      break;
    case CUPTI_ACTIVITY_KIND_MEMSET: {
      const auto& set = *reinterpret_cast<const CUpti_ActivityMemset4*>(record);
      activities.push_back(common(set, Activity::Kind::memset));
      activities.back().bytes = set.bytes;
      break;
    }
    case CUPTI_ACTIVITY_KIND_RUNTIME:
      activities.push_back(call_of(*reinterpret_cast<const CUpti_ActivityAPI*>(record), CUPTI_CB_DOMAIN_RUNTIME_API));
      break;
    case CUPTI_ACTIVITY_KIND_DRIVER:
      activities.push_back(call_of(*reinterpret_cast<const CUpti_ActivityAPI*>(record), CUPTI_CB_DOMAIN_DRIVER_API));
      break;
    case CUPTI_ACTIVITY_KIND_SYNCHRONIZATION:
      activities.push_back(wait_of(*reinterpret_cast<const CUpti_ActivitySynchronization2*>(record)));
      break;
    case CUPTI_ACTIVITY_KIND_MEMORY2: {
      const auto& memory = *reinterpret_cast<const CUpti_ActivityMemory4*>(record);
      if (memory.memoryKind == CUPTI_ACTIVITY_MEMORY_KIND_DEVICE) activities.push_back(memory_of(memory));
      break;
    }
    default: break;
  }
}

}  // namespace aisp::profile
