// SPDX-License-Identifier: Apache-2.0
#include "profile/recording.hpp"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "profile/audit.hpp"

namespace aisp::profile {
namespace {

using Json = nlohmann::ordered_json;
using Kind = Activity::Kind;

// Process and thread numbers of the trace: made up, and named by its metadata.
constexpr int host_process = 1;
constexpr int first_gpu_process = 10;
constexpr int range_track = 1;
constexpr int first_call_track = 2;
constexpr int lanes_per_stream = 100;

Json sizes(const std::array<int, 3>& of) { return Json{of[0], of[1], of[2]}; }

Json arguments_of(const Activity& activity) {
  const double seconds = static_cast<double>(activity.end_ns - activity.start_ns) / 1e9;
  Json args{{"stream", activity.stream}, {"correlation", activity.correlation}};
  if (activity.kind == Kind::kernel) {
    const KernelShape& shape = activity.shape;
    args["kernel"] = demangled(activity.name);
    args["grid"] = sizes(shape.grid);
    args["block"] = sizes(shape.block);
    if (shape.cluster[0] > 0) args["cluster"] = sizes(shape.cluster);
    args["registers"] = shape.registers;
    args["static_shared_bytes"] = shape.static_shared_bytes;
    args["dynamic_shared_bytes"] = shape.dynamic_shared_bytes;
  } else {
    args["bytes"] = activity.bytes;
    if (seconds > 0) args["bytes_per_second"] = static_cast<double>(activity.bytes) / seconds;
  }
  return args;
}

std::string name_of(const Activity& activity) {
  if (activity.kind == Kind::kernel) return short_name(demangled(activity.name));
  return activity.kind == Kind::memset ? "memset" : "copy, " + activity.name;
}

const char* category_of(Kind kind) { return kind == Kind::kernel ? "kernel" : kind == Kind::memcpy ? "copy" : "memset"; }

class Writer {
 public:
  Writer(const Recording& recording, const TraceHeading& heading) : recording_{recording}, heading_{heading} {
    find_origin();
    add_calls();
    add_gpu_work();
    add_ranges();
    add_memory();
  }

  std::string text() {
    std::stable_sort(events_.begin(), events_.end(), [](const Json& a, const Json& b) { return a["ts"] < b["ts"]; });
    Json all = std::move(metadata_);
    for (Json& event : events_) all.push_back(std::move(event));
    Json other{{"pair", heading_.target}, {"variant", heading_.variant}, {"tool", "aisp"}};
    if (heading_.span_ms > 0) other["span_us"] = heading_.span_ms * 1e3;
    const Json trace{{"traceEvents", std::move(all)}, {"displayTimeUnit", "ns"}, {"otherData", std::move(other)}};
    return trace.dump(-1, ' ', false, Json::error_handler_t::replace) + '\n';
  }

 private:
  bool shown(const Activity& activity) const {
    const bool by_host = activity.kind == Kind::call || activity.kind == Kind::memory;
    return !by_host || (activity.start_ns >= recording_.host_begin_ns && activity.start_ns <= recording_.host_end_ns);
  }

  void find_origin() {
    origin_ns_ = recording_.host_begin_ns;
    for (const Activity& activity : recording_.activities)
      if (shown(activity) && (origin_ns_ == 0 || activity.start_ns < origin_ns_)) origin_ns_ = activity.start_ns;
  }

  double microseconds(std::uint64_t at_ns) const {
    return at_ns < origin_ns_ ? 0 : static_cast<double>(at_ns - origin_ns_) / 1e3;
  }

  Json event(const char* phase, const std::string& name, std::uint64_t at_ns, int process, int track) const {
    return Json{{"ph", phase}, {"name", name}, {"pid", process}, {"tid", track}, {"ts", microseconds(at_ns)}};
  }

  void add_slice(const std::string& name, const char* category, std::uint64_t start_ns, std::uint64_t end_ns, int process,
                 int track, Json args) {
    Json slice = event("X", name, start_ns, process, track);
    slice["dur"] = static_cast<double>(end_ns - start_ns) / 1e3;
    slice["cat"] = category;
    slice["args"] = std::move(args);
    events_.push_back(std::move(slice));
  }

  void name_process(int process, const std::string& name) {
    if (!named_.insert({process, -1}).second) return;
    metadata_.push_back({{"ph", "M"}, {"name", "process_name"}, {"pid", process}, {"tid", 0}, {"args", {{"name", name}}}});
    metadata_.push_back(
        {{"ph", "M"}, {"name", "process_sort_index"}, {"pid", process}, {"tid", 0}, {"args", {{"sort_index", process}}}});
  }

  void name_track(int process, int track, const std::string& name) {
    if (!named_.insert({process, track}).second) return;
    metadata_.push_back({{"ph", "M"}, {"name", "thread_name"}, {"pid", process}, {"tid", track}, {"args", {{"name", name}}}});
  }

  void add_calls() {
    name_process(host_process, "host");
    std::map<std::uint32_t, int> tracks;
    const std::vector<Activity> outer = outermost_calls(recording_);
    for (const Activity& call : outer) {
      const int track = tracks.try_emplace(call.thread, first_call_track + static_cast<int>(tracks.size())).first->second;
      name_track(host_process, track, "CUDA calls, thread " + std::to_string(track - first_call_track + 1));
      add_slice(call.name, "call", call.start_ns, call.end_ns, host_process, track, {{"correlation", call.correlation}});
      callers_.try_emplace(call.correlation, track, call.start_ns);
    }
    // Work may name the driver's call inside the one that is shown.
    for (const Activity& call : recording_.activities) {
      if (call.kind != Kind::call || !shown(call)) continue;
      const auto around = std::find_if(outer.begin(), outer.end(), [&](const Activity& other) {
        return other.thread == call.thread && other.start_ns <= call.start_ns && call.end_ns <= other.end_ns;
      });
      if (around != outer.end()) callers_.try_emplace(call.correlation, tracks.at(call.thread), around->start_ns);
    }
  }

  // Work of one stream can overlap (programmatic dependent launch), slices of one track cannot.
  int lane_of(const Activity& activity) {
    std::vector<std::uint64_t>& busy_until = lanes_[{activity.device, activity.stream}];
    const auto unused =
        std::find_if(busy_until.begin(), busy_until.end(), [&](std::uint64_t end) { return end <= activity.start_ns; });
    const auto lane = static_cast<int>(unused - busy_until.begin());
    if (unused == busy_until.end()) busy_until.push_back(activity.end_ns);
    else *unused = activity.end_ns;
    return lane;
  }

  void add_gpu_work() {
    for (const Activity& activity : recording_.activities) {
      if (activity.kind != Kind::kernel && activity.kind != Kind::memcpy && activity.kind != Kind::memset) continue;
      const int process = first_gpu_process + activity.device, lane = lane_of(activity);
      const int track = static_cast<int>(activity.stream) * lanes_per_stream + lane;
      name_process(process, "GPU " + std::to_string(activity.device));
      name_track(process, track,
                 "stream " + std::to_string(activity.stream) + (lane > 0 ? ", overlapping " + std::to_string(lane) : ""));
      add_slice(name_of(activity), category_of(activity.kind), activity.start_ns, activity.end_ns, process, track,
                arguments_of(activity));
      add_arrow(activity, process, track);
    }
  }

  // A graph's launch has one arrow only, to the first of its nodes.
  void add_arrow(const Activity& work, int process, int track) {
    const auto caller = callers_.find(work.correlation);
    if (caller == callers_.end()) return;
    const auto [call_track, call_ns] = caller->second;
    callers_.erase(caller);
    Json from = event("s", "launch", call_ns, host_process, call_track);
    Json to = event("f", "launch", work.start_ns, process, track);
    for (Json* end : {&from, &to}) {
      (*end)["cat"] = "launch";
      (*end)["id"] = work.correlation;
    }
    to["bp"] = "e";
    events_.push_back(std::move(from));
    events_.push_back(std::move(to));
  }

  void add_ranges() {
    name_track(host_process, range_track, "ranges");
    if (recording_.host_end_ns > recording_.host_begin_ns)
      add_slice(heading_.variant, "range", recording_.host_begin_ns, recording_.host_end_ns, host_process, range_track,
                Json::object());
    for (const NamedRange& range : recording_.ranges) {
      if (range.end_ns > range.start_ns) {
        add_slice(range.name, "range", range.start_ns, range.end_ns, host_process, range_track, Json::object());
        continue;
      }
      Json mark = event("i", range.name, range.start_ns, host_process, range_track);
      mark["s"] = "t";
      mark["cat"] = "mark";
      events_.push_back(std::move(mark));
    }
  }

  void add_memory() {
    if (!recording_.resident.empty()) return add_resident();
    std::map<int, double> held;
    const auto count = [&](int device, std::uint64_t at_ns) {
      const int process = first_gpu_process + device;
      name_process(process, "GPU " + std::to_string(device));
      Json counter = event("C", "allocated memory", at_ns, process, 0);
      counter["args"] = {{"bytes", held[device]}};
      events_.push_back(std::move(counter));
    };
    int first_device = 0;
    std::uint64_t last_ns = origin_ns_;
    for (const Activity& activity : recording_.activities) {
      if (activity.kind == Kind::kernel) first_device = activity.device;
      if (shown(activity)) last_ns = std::max(last_ns, activity.end_ns);
    }
    held[first_device] = heading_.allocated_bytes;
    count(first_device, origin_ns_);
    for (const Activity& activity : recording_.activities) {
      if (activity.kind != Kind::memory || !shown(activity)) continue;
      held[activity.device] += (activity.freed ? -1.0 : 1.0) * static_cast<double>(activity.bytes);
      count(activity.device, activity.start_ns);
    }
    for (const auto& [device, bytes] : held) count(device, last_ns);
  }

  void add_resident() {
    for (const MemoryPoint& point : recording_.resident) {
      Json counter = event("C", "resident memory", point.at_ns, host_process, 0);
      counter["args"] = {{"bytes", point.bytes}};
      events_.push_back(std::move(counter));
    }
  }

  const Recording& recording_;
  const TraceHeading& heading_;
  std::uint64_t origin_ns_ = 0;
  std::vector<Json> events_;
  Json metadata_ = Json::array();
  std::set<std::pair<int, int>> named_;
  std::map<std::uint32_t, std::pair<int, std::uint64_t>> callers_;  // correlation -> track and start
  std::map<std::pair<int, std::uint32_t>, std::vector<std::uint64_t>> lanes_;
};

}  // namespace

std::string chrome_trace(const Recording& recording, const TraceHeading& heading) { return Writer{recording, heading}.text(); }

}  // namespace aisp::profile
