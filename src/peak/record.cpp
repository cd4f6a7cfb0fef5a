// SPDX-License-Identifier: Apache-2.0
#include "peak/record.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/digest.hpp"
#include "base/error.hpp"
#include "base/json_fields.hpp"
#include "base/system/files.hpp"
#include "base/system/places.hpp"
#include "base/text.hpp"
#include "evidence/json.hpp"
#include "peak/figures.hpp"

namespace aisp::peak {
namespace {

using nlohmann::json;

constexpr int record_version = 1;
constexpr std::size_t longest_record_bytes = std::size_t{1} << 20, most_points = 4096;
constexpr std::array file_prefixes{"", "levels-", "links-"};  // in the order of Subject

[[noreturn]] void refuse(const std::string& what) { throw base::Error{base::Exit::usage, what}; }

// Refuses a thing without a member that describe() lists, and a number that is negative or none.
class Amounts {
 public:
  Amounts(const json& from, const std::string& place) : from_{from}, place_{place} {}
  void operator()(const std::string& name, double value) const {
    demand(name);
    if (!std::isfinite(value) || value < 0) refuse(fmt::format("{}.{}: {} is no amount", place_, name, value));
  }
  template <class T>
  void operator()(const std::string& name, T& /*value*/) const {
    demand(name);
  }
  template <class T>
  void operator()(const std::string& /*name*/, std::optional<T>& /*value*/) const {}

 private:
  void demand(const std::string& name) const {
    if (!from_.contains(name)) refuse(fmt::format("{}.{} is missing", place_, name));
  }

  const json& from_;
  const std::string& place_;
};

void demand_points(const std::vector<ChasePoint>& points, const std::string& place) {
  if (points.size() > most_points) refuse(place + ": too many points");
  if (!std::ranges::is_sorted(points, {}, &ChasePoint::bytes)) refuse(place + ": its points are in no order");
}

void demand_durations(const std::vector<CollectiveTime>& times) {
  for (const CollectiveTime& time : times)
    if (!(time.bytes > 0 && time.seconds > 0)) refuse("record.times: a collective takes bytes and seconds");
}

class Merge {
 public:
  Merge(machine::Ceilings known, const PeakRecord& record) : ceilings_{std::move(known)}, record_{record} {}

  // Sets `ceiling` to the best of the figures, and `from` if there is one.
  void take(double& ceiling, base::CeilingFrom& from, std::initializer_list<std::string_view> ids, bool matters = true) {
    double best = 0;
    for (const std::string_view id : ids)
      if (const Figure* figure = record_.find(id)) best = std::max(best, figure->value);
    if (best > 0) {
      ceiling = best;
      from = base::CeilingFrom::measured;
    } else {
      incomplete_ = incomplete_ || (matters && ceiling > 0);
    }
  }

  machine::Ceilings& ceilings() { return ceilings_; }

  machine::Ceilings finish() {
    const std::string before = ceilings_.source;
    ceilings_.source = "measured by aisp peak " + record_.measured_utc.substr(0, 10) + (record_.quick ? " (quick)" : "");
    if (incomplete_) ceilings_.source += "; what it could not measure: " + before;
    return ceilings_;
  }

 private:
  machine::Ceilings ceilings_;
  const PeakRecord& record_;
  bool incomplete_ = false;
};

constexpr Unit bytes = Unit::bytes_per_second, flop = Unit::flop_per_second, time = Unit::seconds;

constexpr std::array figures = {
    Known{figure_id::hbm_read, "HBM read", bytes},
    Known{figure_id::hbm_write, "HBM write", bytes},
    Known{figure_id::hbm_copy, "HBM copy", bytes},
    Known{figure_id::hbm_triad, "HBM triad", bytes},
    Known{figure_id::l2_read, "L2 read", bytes},
    Known{figure_id::shared_read, "shared memory read", bytes},
    Known{"fp64", "FP64", flop},
    Known{"fp64_tensor", "FP64 tensor", flop},
    Known{"fp32", "FP32", flop},
    Known{"tf32", "TF32", flop},
    Known{"bf16", "BF16", flop},
    Known{"fp16", "FP16", flop},
    Known{"fp8", "FP8", flop},
    Known{"int8", "INT8", flop},
    Known{figure_id::host_to_device, "host to device", bytes},
    Known{figure_id::device_to_host, "device to host", bytes},
    Known{figure_id::both_directions, "both at once", bytes},
    Known{figure_id::peer_copy, "peer copy engine", bytes},
    Known{figure_id::peer_pull, "peer pull by SMs", bytes},
    Known{figure_id::all_reduce, "NCCL all-reduce bus", bytes},
    Known{figure_id::kernel_launch, "kernel launch", time},
    Known{figure_id::graph_launch, "graph launch", time},
    Known{figure_id::event_record, "event record", time},
    Known{figure_id::synchronize, "launch and synchronize", time},
    Known{figure_id::empty_kernel, "empty kernel", time},
    Known{figure_id::graph_node, "kernel after kernel in a graph", time},
    Known{figure_id::host_read, "host memory read", bytes},
    Known{figure_id::host_write, "host memory write", bytes},
    Known{figure_id::host_copy, "host memory copy", bytes},
};

}  // namespace

AISP_DESCRIBE(Sustained, value, duration_s, sm_clock_mhz, power_w, throttle_reasons)
AISP_DESCRIBE(Figure, id, value, how, why_not, sustained)
AISP_DESCRIBE(Key, of, model, driver, power_limit_w, cpus)

template <class Visitor>
static void describe(ChasePoint& p, Visitor& visit) {
  visit("bytes", p.bytes);
  visit("latency_ns", p.ns);
  visit("latency_cycles", p.cycles);
  visit("bytes_s", p.bytes_s);
}

template <class Visitor>
static void describe(TwoKinds& k, Visitor& visit) {
  visit("near_cycles", k.near);
  visit("far_cycles", k.far);
  visit("far_share", k.far_share);
}

AISP_DESCRIBE(MemoryLevels, lines, pages, page_bytes, registers, shared, l2)
AISP_DESCRIBE(FabricGpu, ordinal, uuid, name, figures)

template <class Visitor>
static void describe(FabricPair& p, Visitor& visit) {
  visit("from_gpu", p.from);
  visit("to_gpu", p.to);
  visit("path", p.path);
  visit("direct", p.direct);
  visit("bytes_s", p.bytes_s);
  visit("both_bytes_s", p.both_bytes_s);
  visit("latency_s", p.latency_s);
}

template <class Visitor>
static void describe(CollectiveTime& c, Visitor& visit) {
  visit("operation", c.operation);
  visit("bytes", c.bytes);
  visit("time_s", c.seconds);
  visit("wrong", c.wrong);
}

AISP_DESCRIBE(Fabric, gpus, pairs, nccl, times, missing)

template <class Visitor>
static void describe(PeakRecord& r, Visitor& visit) {
  visit("key", r.key);
  visit("measured_utc", r.measured_utc);
  if (r.levels) return describe(*r.levels, visit);
  if (r.fabric) return describe(*r.fabric, visit);
  visit("quick", r.quick);
  visit("partial", r.partial);
  visit("figures", r.figures);
}

template <class Thing>
requires requires(Thing& thing, const Amounts& amounts) { describe(thing, amounts); }
static void read_field(const json& from, Thing& thing, const std::string& place) {
  base::JsonReader reader{from, place};
  describe(thing, reader);
  const Amounts amounts{from, place};
  describe(thing, amounts);
}

// Readers know the unit by the id; scripts need not.
void to_json(json& object, const Figure& figure) {
  object = base::json_of(figure);
  if (const Known* known = find_known(figure.id)) object["unit"] = name_of(known->unit);
}
void from_json(const json& object, Figure& figure) { read_field(object, figure, "figure"); }

json record_json(const PeakRecord& record) {
  json object = base::json_of(record);
  object["schema_version"] = record_version;
  if (!record.fabric) return object;
  for (std::size_t i = 0; i < record.fabric->times.size(); ++i) {
    object["times"][i]["algorithm_bytes_s"] = record.fabric->times[i].algorithm_bytes_s();
    object["times"][i]["bus_bytes_s"] = record.fabric->times[i].bus_bytes_s(record.fabric->gpus.size());
  }
  return object;
}

PeakRecord read_record(const json& object, Subject subject) {
  int version = 0;
  base::JsonReader{object, "record"}("schema_version", version);
  if (version != record_version) refuse("it is of another version of aisp");
  PeakRecord record;
  if (subject == Subject::levels) record.levels.emplace();
  if (subject == Subject::fabric) record.fabric.emplace();
  read_field(object, record, "record");
  if (record.levels) {
    demand_points(record.levels->lines, "record.lines");
    demand_points(record.levels->pages, "record.pages");
  }
  if (record.fabric) demand_durations(record.fabric->times);
  return record;
}

std::filesystem::path cache_file(const std::filesystem::path& cache, const Key& key, Subject subject) {
  const std::string digest = base::sha256_hex(evidence::json_text(base::json_of(key)));
  return cache / "peak" /
         fmt::format("{}{}-{}.json", file_prefixes.at(static_cast<std::size_t>(subject)),
                     key.of == key_of_host ? key_of_host : "gpu", digest.substr(0, 16));
}

Cached load(const std::filesystem::path& cache, const Key& key, Subject subject) {
  if (cache.empty()) return {};
  const std::filesystem::path file = cache_file(cache, key, subject);
  std::error_code ignored;
  if (!std::filesystem::exists(file, ignored)) return {};
  const auto unusable = [&](const std::string& why) {
    return Cached{std::nullopt,
                  fmt::format("{} is not a record of aisp peak ({}); it is not used", file.string(), base::one_line(why))};
  };
  try {
    PeakRecord record = read_record(evidence::parse_json(base::read_file(file, longest_record_bytes), "JSON"), subject);
    if (record.key != key) return unusable("it is of another machine");
    return {std::move(record), {}};
  } catch (const std::exception& error) {
    return unusable(error.what());
  }
}

void store(const std::filesystem::path& cache, const PeakRecord& record) {
  if (cache.empty()) throw base::Error{base::Exit::unfit, "no place for a cache: set HOME or XDG_CACHE_HOME"};
  base::write_atomically(cache_file(cache, record.key, record.subject()), evidence::json_text(record_json(record), 2) + '\n');
}

machine::Ceilings measured_over(machine::Ceilings known, const PeakRecord& record, bool with_peers) {
  const bool any = std::any_of(record.figures.begin(), record.figures.end(), [](const Figure& f) { return f.measured(); });
  if (!any) return known;
  Merge merge{std::move(known), record};
  machine::Ceilings& c = merge.ceilings();
  machine::CeilingSources& from = c.from;
  // A memory's ceiling is made of both rates.
  base::CeilingFrom copy_from = from.memory, read_from = from.memory;
  merge.take(c.copy_bytes_s, copy_from, {figure_id::hbm_copy});
  merge.take(c.read_bytes_s, read_from, {figure_id::hbm_read});
  from.memory = std::max(copy_from, read_from);
  for (std::size_t i = 0; i < machine::math_kinds; ++i)
    merge.take(c.flops_s[i], from.flops[i], {machine::name_of(static_cast<Math>(i))});
  merge.take(c.host_to_device_bytes_s, from.host_to_device, {figure_id::host_to_device});
  merge.take(c.device_to_host_bytes_s, from.device_to_host, {figure_id::device_to_host});
  merge.take(c.peer_bytes_s, from.peer, {figure_id::peer_copy, figure_id::peer_pull}, with_peers);
  merge.take(c.launch_s, from.launch, {figure_id::graph_node});
  merge.take(c.l2_bytes_s, from.l2, {figure_id::l2_read}, false);
  double shared_bytes_s = 0;
  merge.take(shared_bytes_s, from.wavefronts, {figure_id::shared_read}, false);
  if (shared_bytes_s > 0) c.wavefronts_s = shared_bytes_s / machine::wavefront_bytes;
  merge.take(c.host_copy_bytes_s, from.host_copy, {figure_id::host_copy, figure_id::host_read});
  return merge.finish();
}

machine::Ceilings best_known(const machine::Gpu& gpu, const std::string& driver, bool with_peers) {
  const Cached cached = load(base::cache_folder(), key_of(gpu, driver));
  machine::Ceilings known = machine::provisional_ceilings(gpu);
  return cached.record ? measured_over(std::move(known), *cached.record, with_peers) : known;
}

machine::Ceilings best_known(const machine::Host& host) {
  const Cached cached = load(base::cache_folder(), key_of(host));
  return cached.record ? measured_over(machine::host_ceilings(), *cached.record, false) : machine::host_ceilings();
}

std::string_view name_of(Unit unit) {
  constexpr std::array<std::string_view, 3> names = {"B/s", "FLOP/s", "s"};
  return names.at(static_cast<std::size_t>(unit));
}

std::span<const Known> known_figures() { return figures; }

const Known* find_known(std::string_view id) {
  const auto found = std::find_if(figures.begin(), figures.end(), [&](const Known& known) { return known.id == id; });
  return found == figures.end() ? nullptr : &*found;
}

Key key_of(const machine::Gpu& gpu, const std::string& driver) {
  const double limit_w = gpu.condition ? gpu.condition->power_limit_w.value_or(0) : 0;
  return {.of = gpu.uuid, .model = gpu.name, .driver = driver, .power_limit_w = limit_w};
}

Key key_of(const machine::Host& host) { return {.of = std::string{key_of_host}, .model = host.cpu, .cpus = host.cpus_usable}; }

const Figure* find_measured(const std::vector<Figure>& among, std::string_view id) {
  const auto found = std::ranges::find_if(among, [&](const Figure& figure) { return figure.id == id && figure.measured(); });
  return found == among.end() ? nullptr : &*found;
}

}  // namespace aisp::peak
