// SPDX-License-Identifier: Apache-2.0
#include "profile/activity.hpp"

#include <aisp/check.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <deque>
#include <mutex>

#include "base/own_launch.hpp"
#include "profile/cupti.hpp"

namespace aisp::profile {
namespace {

constexpr std::size_t buffer_bytes = std::size_t{1} << 20;
// A forced flush hands over records of work that still runs, and CUPTI writes their ends when they have come: into buffers that
// must not be freed yet.
constexpr std::size_t most_retired = 16;
constexpr std::array kinds{CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMCPY2,
                           CUPTI_ACTIVITY_KIND_MEMSET};

constexpr std::array host_kinds{CUPTI_ACTIVITY_KIND_RUNTIME, CUPTI_ACTIVITY_KIND_DRIVER, CUPTI_ACTIVITY_KIND_SYNCHRONIZATION};

// CUPTI's callbacks carry no pointer of ours, so what they fill is the process's own.
struct Collected {
  std::mutex mutex;
  std::vector<Activity> activities;
  std::atomic<int> host_functions{0};
  std::vector<std::uint32_t> own_launches;  // their correlations
  bool tells_own = false;
  std::deque<std::uint8_t*> retired;  // oldest first
};
// Never destroyed: CUPTI may still hand over buffers while the process ends.
Collected& collected() {
  static Collected& instance = *new Collected;
  return instance;
}

void CUPTIAPI provide_buffer(std::uint8_t** buffer, std::size_t* size, std::size_t* most_records) {
  *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(64, buffer_bytes));
  *size = *buffer != nullptr ? buffer_bytes : 0;
  *most_records = 0;
}

void CUPTIAPI take_buffer(CUcontext, std::uint32_t, std::uint8_t* buffer, std::size_t, std::size_t valid_bytes) {
  const std::scoped_lock lock{collected().mutex};
  CUpti_Activity* record = nullptr;
  while (valid_bytes > 0 && cupti().next(buffer, valid_bytes, &record) == CUPTI_SUCCESS) keep(record, collected().activities);
  std::deque<std::uint8_t*>& retired = collected().retired;
  retired.push_back(buffer);
  if (retired.size() <= most_retired) return;
  std::free(retired.front());
  retired.pop_front();
}

struct Call {
  CUpti_CallbackDomain domain;
  CUpti_CallbackId id;
  bool operator==(const Call&) const = default;
};
// Queue a host function, or put one into a graph. Seen in the driver, where all calls of the runtime end up too.
constexpr std::array<Call, 5> host_function_calls{{{CUPTI_CB_DOMAIN_DRIVER_API, CUPTI_DRIVER_TRACE_CBID_cuLaunchHostFunc},
                                                   {CUPTI_CB_DOMAIN_DRIVER_API, CUPTI_DRIVER_TRACE_CBID_cuLaunchHostFunc_ptsz},
                                                   {CUPTI_CB_DOMAIN_DRIVER_API, CUPTI_DRIVER_TRACE_CBID_cuStreamAddCallback},
                                                   {CUPTI_CB_DOMAIN_DRIVER_API, CUPTI_DRIVER_TRACE_CBID_cuStreamAddCallback_ptsz},
                                                   {CUPTI_CB_DOMAIN_DRIVER_API, CUPTI_DRIVER_TRACE_CBID_cuGraphAddHostNode}}};
// Launch the harness's kernels. A kernel's record bears the correlation of the call of the runtime or of that of the driver.
constexpr std::array<Call, 4> own_launch_calls{{{CUPTI_CB_DOMAIN_RUNTIME_API, CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernel_v7000},
                                                {CUPTI_CB_DOMAIN_RUNTIME_API, CUPTI_RUNTIME_TRACE_CBID___cudaLaunchKernel_v13000},
                                                {CUPTI_CB_DOMAIN_DRIVER_API, CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel},
                                                {CUPTI_CB_DOMAIN_DRIVER_API, CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx}}};

void CUPTIAPI note_call(void*, CUpti_CallbackDomain domain, CUpti_CallbackId id, const void* data) {
  const auto& call = *static_cast<const CUpti_CallbackData*>(data);
  if (call.callbackSite != CUPTI_API_ENTER) return;
  if (std::ranges::find(own_launch_calls, Call{domain, id}) == own_launch_calls.end()) {
    ++collected().host_functions;
  } else if (base::OwnLaunch::in_effect()) {
    const std::scoped_lock lock{collected().mutex};
    collected().own_launches.push_back(call.correlationId);
  }
}

std::optional<std::string> find_obstacle() {
  try {
    if (cupti().register_callbacks(provide_buffer, take_buffer) != CUPTI_SUCCESS) return "another profiler uses CUPTI";
    const CUptiResult status = cupti().enable(CUPTI_ACTIVITY_KIND_MEMSET);
    if (status == CUPTI_ERROR_INSUFFICIENT_PRIVILEGES)
      return "the driver lets only root profile (NVreg_RestrictProfilingToAdminUsers=0 changes that)";
    if (status != CUPTI_SUCCESS) return "CUPTI cannot record here (error " + std::to_string(status) + ")";
    cupti().disable(CUPTI_ACTIVITY_KIND_MEMSET);
    return std::nullopt;
  } catch (const Unsupported& reason) {
    return reason.what();
  }
}

CUpti_SubscriberHandle subscriber = nullptr;

// Sees launches only while the harness itself launches, so that those of a pair take no longer.
void watch_own_launch(bool begins) {
  for (const Call& call : own_launch_calls) cupti().enable_callback(begins ? 1 : 0, subscriber, call.domain, call.id);
}

void watch_calls(bool on) {
  if (on) {
    collected().host_functions = 0;
    if (cupti().subscribe(&subscriber, note_call, nullptr) != CUPTI_SUCCESS) {
      subscriber = nullptr;
      return;
    }
    for (const Call& call : host_function_calls) cupti().enable_callback(1, subscriber, call.domain, call.id);
    base::OwnLaunch::watch_by(watch_own_launch);
  } else if (subscriber != nullptr) {
    base::OwnLaunch::watch_by(nullptr);
    cupti().unsubscribe(subscriber);
    subscriber = nullptr;
  }
}

bool has_own_name(const Activity& activity) {
  static constexpr const char* names[] = {"aisp_sample_begin", "aisp_sample_end", "aisp_evict", "aisp_probe", "4aisp4pair3gpu"};
  return std::ranges::any_of(names, [&](const char* name) { return activity.name.find(name) != std::string::npos; });
}

void tell_own(std::vector<Activity>& activities, std::vector<std::uint32_t>& launches, bool& told) {
  std::ranges::sort(launches);
  const auto is_launched = [&](const Activity& activity) { return std::ranges::binary_search(launches, activity.correlation); };
  for (Activity& activity : activities) activity.own = activity.kind == Activity::Kind::kernel && is_launched(activity);
  told |= std::ranges::any_of(activities, &Activity::own);
  if (told) return;
  for (Activity& activity : activities) activity.own = activity.kind == Activity::Kind::kernel && has_own_name(activity);
}

}  // namespace

const std::optional<std::string>& ActivityRecorder::unavailable() {
  static const std::optional<std::string> obstacle = find_obstacle();
  return obstacle;
}

ActivityRecorder::ActivityRecorder() {
  if (unavailable()) throw Unsupported{*unavailable()};
}

ActivityRecorder::~ActivityRecorder() { watch_calls(false); }

void ActivityRecorder::start(Detail detail) {
  detail_ = detail;
  {
    const std::scoped_lock lock{collected().mutex};
    collected().activities.clear();
    collected().own_launches.clear();
  }
  for (const CUpti_ActivityKind kind : kinds) cupti().enable(kind);
  if (detail_ != Detail::device) cupti().enable(CUPTI_ACTIVITY_KIND_MEMORY2);
  if (detail_ == Detail::everything)
    for (const CUpti_ActivityKind kind : host_kinds) cupti().enable(kind);
  watch_calls(true);
}

void ActivityRecorder::forget() {
  cupti().flush(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
  const std::scoped_lock lock{collected().mutex};
  collected().activities.clear();
  collected().own_launches.clear();
}

std::vector<Activity> ActivityRecorder::take() {
  cupti().flush(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
  const std::scoped_lock lock{collected().mutex};
  std::vector<Activity> activities = std::move(collected().activities);
  collected().activities.clear();
  tell_own(activities, collected().own_launches, collected().tells_own);
  collected().own_launches.clear();
  std::sort(activities.begin(), activities.end(), [](const Activity& a, const Activity& b) { return a.start_ns < b.start_ns; });
  return activities;
}

std::vector<Activity> ActivityRecorder::stop() {
  watch_calls(false);
  std::vector<Activity> activities = take();
  for (const CUpti_ActivityKind kind : kinds) cupti().disable(kind);
  if (detail_ != Detail::device) cupti().disable(CUPTI_ACTIVITY_KIND_MEMORY2);
  if (detail_ == Detail::everything)
    for (const CUpti_ActivityKind kind : host_kinds) cupti().disable(kind);
  return activities;
}

int ActivityRecorder::host_functions() const { return collected().host_functions; }

bool ActivityRecorder::tells_own() { return collected().tells_own; }

std::uint64_t ActivityRecorder::now_ns() {
  std::uint64_t now = 0;
  cupti().timestamp(&now);
  return now;
}

std::uint64_t span_ns(const std::vector<Activity>& activities) {
  if (activities.empty()) return 0;
  std::uint64_t first = activities.front().start_ns, last = 0;
  for (const Activity& activity : activities) {
    first = std::min(first, activity.start_ns);
    last = std::max(last, activity.end_ns);
  }
  return last - first;
}

std::uint64_t most_allocated_bytes(const std::vector<Activity>& activities) {
  std::int64_t held = 0, most = 0;
  for (const Activity& activity : activities) {
    if (activity.kind != Activity::Kind::memory) continue;
    held += (activity.freed ? -1 : 1) * static_cast<std::int64_t>(activity.bytes);
    most = std::max(most, held);
  }
  return static_cast<std::uint64_t>(most);
}

}  // namespace aisp::profile
